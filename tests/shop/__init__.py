"""The shop: its workflows in the harness, its pages, its demo."""
