"""An app with workflows for the tests that start worker processes; installed by `tests.app.flows.settings`."""
