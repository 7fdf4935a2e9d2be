"""Questions of runs to people (`ctx.ask_person`): the inbox of a user, and the verbs of who answers.

for question in questions_for(request.user):
    question.answer({"amount": 12}, by=request.user)
"""

from durable.core.people import STARTER
from durable.core.results import PersonAnswer, Verdict
from durable.operations.people import (
    Question,
    aquestions_for,
    question,
    question_at,
    questions_for,
    questions_of,
)

__all__ = [
    "STARTER",
    "PersonAnswer",
    "Question",
    "Verdict",
    "aquestions_for",
    "question",
    "question_at",
    "questions_for",
    "questions_of",
]
