"""Children and maps: the operations that start runs of other workflows, wait for them and undo them."""
