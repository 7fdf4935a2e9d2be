"""On PostgreSQL: the functions that write runs, and the guards in place of constraints.

`durable.store.routines` has the texts.
"""

from __future__ import annotations

from django.db import migrations

from durable.store.routines.operations import CreateRoutines, DropGuardedConstraints


class Migration(migrations.Migration):
    """Create the functions and triggers, and drop the constraints that guards replace."""

    dependencies = [("durable", "0001_tables")]

    operations = [
        CreateRoutines(
            [
                "durable_start_2",
                "durable_start_carried_1",
                "durable_visited_1",
                "durable_claim_3",
                "durable_witness_1",
                "durable_flush_1",
                "durable_record_1",
                "durable_send_1",
                "durable_sends_1",
                "durable_commit_1",
                "durable_fail_2",
                "durable_complete_1",
                "durable_start_keyed_1",
                "durable_lock_limit_1",
                "durable_tell_of_slot_1",
                "durable_hand_on_1",
                "durable_line_1",
                "durable_acquire_1",
                "durable_change_slots_1",
                "durable_sweep_slots_1",
                "durable_reserve_1",
                "durable_tag_1",
                "durable_rank_1",
                "durable_rank_child_1",
                "durable_claim_ranked_1",
                "durable_claim_4",
                "durable_wake_parent_1",
                "durable_end_children_1",
                "durable_drop_children_1",
                "durable_cascade_1",
                "durable_commit_2",
                "durable_complete_2",
                "durable_ended_1",
                "durable_member_ended_1",
                "durable_member_gone_1",
                "durable_run_guard_1",
                "durable_entry_guard_4",
                "durable_metadata_guard_1",
                "durable_run_gone_1",
                "durable_entry_gone_1",
                "durable_run_renamed_1",
                "durable_guard on durable_run",
                "durable_guard_4 on durable_entry",
                "durable_guard on durable_entrymetadata",
                "durable_gone on durable_run",
                "durable_emptied on durable_run",
                "durable_gone on durable_entry",
                "durable_emptied on durable_entry",
                "durable_renamed on durable_run",
                "durable_ended on durable_run",
                "durable_ended_by_deletion on durable_run",
                "durable_member_gone on durable_child",
            ]
        ),
        DropGuardedConstraints(),
    ]
