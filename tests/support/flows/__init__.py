"""An app with workflows for the tests that start worker processes; installed by `tests.support.flows.settings`."""
