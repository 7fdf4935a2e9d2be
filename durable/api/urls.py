"""The interface's URLs. Include them under any prefix; links in answers use that prefix."""

from __future__ import annotations

from django.urls import path, re_path

from durable.api.actions import GiveOutputView, PlanView, ReplayView, RestartView, StackView
from durable.api.base import list_view, one_view
from durable.api.bulks import BulkPlanView, BulksView, BulkView
from durable.api.messages import (
    QUESTION_VERBS,
    AskView,
    DeleteMessageView,
    EventsView,
    MessagesView,
    MessageView,
    MoveMessageView,
    QuestionsView,
    QuestionView,
)
from durable.api.reference import DocsView, RootView, SchemaView
from durable.api.runs import (
    ComparisonView,
    CountsView,
    EntryView,
    ResultView,
    RunsView,
    RunView,
    TimelineView,
    TreeView,
)
from durable.api.schedules import SchedulesView, ScheduleView
from durable.api.stream import ChunksView, StreamView
from durable.api.system import AnywhereView, NoteView, WorkflowStatsView, WorkflowsView, WorkflowView
from durable.api.verb_views import endpoints, run_endpoints
from durable.listings.events import EVENT_WAITS
from durable.listings.history import ENTRIES, LOGS, VALUES
from durable.listings.operators import ACTIONS
from durable.listings.restored import RESTORED
from durable.listings.runs import CHILDREN
from durable.listings.work import CAUSES, LIMITS, QUEUES, RATES, RUNNING, RUNNING_OF_RUN, WORKERS
from durable.operations.catalogue import DATABASE, LIMIT, QUEUE, RATE, SCHEDULE, WORKFLOW

app_name = "durable_api"

urlpatterns = [
    path("", RootView.as_view(), name="root"),
    path("docs", DocsView.as_view(), name="docs"),
    path("schema", SchemaView.as_view(), name="schema"),
    path("runs", RunsView.as_view(), name="runs"),
    path("runs/<str:run_id>", RunView.as_view(), name="run"),
    path("runs/<str:run_id>/result", ResultView.as_view(), name="result"),
    path("runs/<str:run_id>/entries", list_view(ENTRIES), name="entries"),
    path("runs/<str:run_id>/entries/<path:location>", EntryView.as_view(), name="entry"),
    path("runs/<str:run_id>/events", StreamView.as_view(), name="events"),
    path("runs/<str:run_id>/stream/<path:location>", ChunksView.as_view(), name="chunks"),
    path("runs/<str:run_id>/logs", list_view(LOGS), name="logs"),
    path("runs/<str:run_id>/values", list_view(VALUES), name="values"),
    path("runs/<str:run_id>/timeline", TimelineView.as_view(), name="timeline"),
    path("runs/<str:run_id>/tree", TreeView.as_view(), name="tree"),
    path("runs/<str:run_id>/running", list_view(RUNNING_OF_RUN), name="running-of-run"),
    path("runs/<str:run_id>/children", list_view(CHILDREN), name="children"),
    path("runs/<str:run_id>/messages", MessagesView.as_view(), name="messages"),
    path("runs/<str:run_id>/messages/<str:message_id>", MessageView.as_view(), name="message"),
    path("runs/<str:run_id>/messages/<str:message_id>/delete", DeleteMessageView.as_view(), name="delete-message"),
    path("runs/<str:run_id>/messages/<str:message_id>/move", MoveMessageView.as_view(), name="move-message"),
    path("runs/<str:run_id>/ask", AskView.as_view(), name="ask"),
    *run_endpoints(),
    path("runs/<str:run_id>/stack", StackView.as_view(), name="stack"),
    path("runs/<str:run_id>/restart", RestartView.as_view(), name="restart"),
    path("runs/<str:run_id>/replay", ReplayView.as_view(), name="replay"),
    path("runs/<str:run_id>/give-output", GiveOutputView.as_view(), name="give-output"),
    path("runs/<str:run_id>/replay-plan", PlanView.as_view(), name="replay-plan"),
    path("runs/<str:run_id>/comparison", ComparisonView.as_view(), name="comparison"),
    path("questions", QuestionsView.as_view(), name="questions"),
    path("questions/<str:question_id>", QuestionView.as_view(), name="question"),
    *QUESTION_VERBS,
    path("events", EventsView.as_view(), name="publish"),
    path("event-waits", list_view(EVENT_WAITS), name="event-waits"),
    path("bulk-plan", BulkPlanView.as_view(), name="bulk-plan"),
    path("bulks", BulksView.as_view(), name="bulks"),
    path("bulks/<str:bulk_id>", BulkView.as_view(), name="bulk"),
    path("causes", list_view(CAUSES), name="causes"),
    path("causes/<str:cause>/note", NoteView.as_view(), name="note"),
    path("running", list_view(RUNNING), name="running"),
    path("counts", CountsView.as_view(), name="counts"),
    path("workflows", WorkflowsView.as_view(), name="workflows"),
    *endpoints(QUEUE, WORKFLOW, LIMIT, RATE, SCHEDULE, DATABASE),
    path("workflows/<path:name>/stats", WorkflowStatsView.as_view(), name="workflow-stats"),
    path("workflows/<path:name>", WorkflowView.as_view(), name="workflow"),
    path("queues", list_view(QUEUES), name="queues"),
    path("limits", list_view(LIMITS), name="limits"),
    path("rates", list_view(RATES), name="rates"),
    path("rates/<path:name>", one_view(RATES), name="rate"),
    path("limits/<path:name>", one_view(LIMITS), name="limit"),
    path("schedules", SchedulesView.as_view(), name="schedules"),
    path("schedules/<path:name>", ScheduleView.as_view(), name="schedule"),
    path("database", list_view(RESTORED), name="database"),
    path("workers", list_view(WORKERS), name="workers"),
    path("operator-actions", list_view(ACTIONS), name="operator-actions"),
    re_path(r"^(?P<path>[\s\S]*)$", AnywhereView.as_view(), name="anywhere"),
]
