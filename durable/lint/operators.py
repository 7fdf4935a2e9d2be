"""The operations of contexts, by the names of their methods. Data only; a test compares it with `durable.context`."""

from __future__ import annotations

from typing import Final

CONTEXT_METHODS: Final = frozenset(
    {
        *("step", "try_step", "try_block", "loop", "sleep", "sleep_until", "join", "race", "child", "start_child"),
        *("map", "rollback_checkpoint", "compensate", "removed", "get_version", "tag"),
    }
)
QUEUE_METHODS: Final = frozenset({"next", "next_batch", "send"})
CHILD_METHODS: Final = frozenset({"result"})
MESSAGE_METHODS: Final = frozenset({"complete", "refuse"})

#: Members of a context that perform no operation.
PLAIN: Final = frozenset(
    {"run_id", "scheduled_for", "random", "is_evicted", "eviction_reason", "now", "uuid4", "logger", "queue"}
)

STEPS: Final = frozenset({"step", "try_step"})
#: Operations whose second argument is a body, or a dict of bodies, with a scope of their own.
BODIES: Final = {"loop": "iteration", "try_block": "block", "join": "branch", "race": "branch"}
#: Operations whose first argument is a name that is unique in its scope.
NAMED: Final = (CONTEXT_METHODS - {"compensate", "tag"}) | {"next", "next_batch", "result"}

START_METHODS: Final = frozenset({"start", "astart", "start_many", "astart_many", "start_or_send", "astart_or_send"})
#: What `using` takes.
START_OPTIONS: Final = frozenset(
    {
        *(
            "id",
            "queue",
            "delay",
            "on_conflict",
            "deadline",
            "work_limit",
            "key",
            "if_open",
            "debounce",
            "at_most",
            "keep",
        ),
        *("rate", "when_full", "when_parent_ends", "rollback", "priority", "share", "weight", "tags"),
    }
)
#: What a step takes.
STEP_OPTIONS: Final = frozenset(
    {
        *("atomic", "backoff", "ephemeral", "heartbeat", "limit", "max_retries", "rate", "retry_backoff_base"),
        *("retry_backoff_max", "retry_if", "retry_jitter", "retry_on_timeout", "rollback", "timeout", "units"),
    }
)
