"""Saved views of the list of runs: each user's own, and shared ones. Only sharing is logged."""

from __future__ import annotations

from typing import Final

from durable import runtime
from durable.conf import conf
from durable.models import SavedView
from durable.operations.audit import Actor, acting_as, audited

MOST: Final = 50  # views of a user
_MAX_QUERY: Final = 4_000  # characters


def save_view(actor: Actor, name: str, query: str, *, is_shared: bool = False) -> SavedView:
    """Save the list's address under a name; it replaces the user's earlier view of that name.

    Sharing it needs `durable.share_savedview`. Raises OperationDeniedError, and ValueError for an address that is too
    long, or too many views.
    """
    at, key = runtime.current(), _key(actor)
    views = SavedView.objects.using(conf.DATABASE)
    if len(query) > _MAX_QUERY:
        raise ValueError(f"the address of a view has at most {_MAX_QUERY:,} characters, not {len(query):,}")
    own = views.filter(owner_key=key)
    before = own.filter(name=name).first()
    if before is None and own.count() >= MOST:
        raise ValueError(f"you have {MOST} views already: delete one first")

    def save() -> SavedView:
        values = {"query": query, "owner_label": actor.name, "is_shared": is_shared, "created_at": at.now()}
        return views.update_or_create(owner_key=key, name=name, defaults=values)[0]

    if not is_shared and (before is None or not before.is_shared):
        return save()
    with acting_as(actor), audited(at, "share", "") as by, at.store.transaction():
        view = save()
        at.store.log([by.done(before="", after="", detail=f"view {name}: {query}")])
        return view


def delete_view(actor: Actor, pk: int) -> None:
    """Delete a view of the user, or, with `durable.share_savedview`, a shared one of another user.

    Raises OperationDeniedError, and ValueError if the user sees no such view.
    """
    at, key = runtime.current(), _key(actor)
    view = SavedView.objects.using(conf.DATABASE).filter(pk=pk).first()
    if view is None or not (view.is_shared or view.owner_key == key):
        raise ValueError("there is no such view: it may have been deleted")
    if view.owner_key == key:
        view.delete()
        return
    with acting_as(actor), audited(at, "share", "") as by, at.store.transaction():
        at.store.log([by.done(before="", after="", detail=f"deleted view {view.name} of {view.owner_label}")])
        view.delete()


def _key(actor: Actor) -> str:
    if actor.user is None or actor.user.pk is None:
        raise ValueError("a view belongs to a user: name one")
    return str(actor.user.pk)
