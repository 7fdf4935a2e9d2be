"""Nine workflows after ideas of Prefect's examples, as somebody writes them who comes from there."""

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import requests

from durable import Context, workflow
from durable.errors import MessageTimeoutError, StepExhaustedError

cache = {}


def fetch(url):
    return requests.get(url, timeout=10).json()


def clean(rows):
    return [row for row in rows if row]


def load(rows, target):
    Path(target).write_text(json.dumps(rows))


# Extract, transform, load.
@workflow(name="prefect.etl")
def etl(ctx: Context, url: str):
    rows = ctx.step("extract", fetch, url, max_retries=3)
    cleaned = ctx.step("transform", clean, rows)
    target = os.environ["TARGET"]  # expect: W104
    ctx.step("load", load, cleaned, target)
    with open("report.txt", "a") as report:  # expect: W105
        report.write(f"{len(cleaned)} rows\n")


# Stars of repositories, in parallel (the tutorial), with a cache in memory.
@workflow(name="prefect.stars")
def stars(ctx: Context, repositories: list):
    def count(repository):
        if repository not in cache:
            cache[repository] = fetch(f"https://api.example.org/{repository}")
        return cache[repository]

    with ThreadPoolExecutor() as pool:  # expect: W107
        found = list(pool.map(lambda each: ctx.step(f"stars {each}", count, each), repositories))
    return dict(zip(repositories, found))


# Pages of an API into a table and a file (run_api_sourced_etl).
def fetch_page(base, page, size):
    response = requests.get(f"{base}/articles", params={"page": page, "per_page": size}, timeout=30)
    response.raise_for_status()
    return response.json()


def to_rows(pages):
    frame = pd.json_normalize([article for page in pages for article in page])
    return frame[["id", "title", "published_at"]].to_dict("records")


def save_csv(rows, path):
    pd.DataFrame(rows).to_csv(path, index=False)


@workflow(name="prefect.articles")
def articles(ctx: Context, base: str, pages: int, size: int, output: str):
    raw = []
    for page in range(1, pages + 1):
        raw.append(ctx.step(f"page {page}", fetch_page, base, page, size, max_retries=3))
    rows = ctx.step("to rows", to_rows, raw)
    ctx.step("save", save_csv, rows, Path(output))
    print(f"{len(rows)} articles in {output}")


# Texts of pages (simple_web_scraper).
def parse(html):
    return html.partition("<main>")[2].partition("</main>")[0]


@workflow(name="prefect.scrape")
def scrape(ctx: Context, urls: list | None = None):
    texts = {}
    if urls:
        for url in urls:
            html = ctx.step("fetch html", fetch, url)  # expect: W133
            texts[url] = ctx.step("parse", parse, html)  # expect: W133
            print(texts[url] or "no article")
    return texts


# Old runs are deleted after a person has agreed (ai_database_cleanup_with_approval).
@dataclass
class Retention:
    period: timedelta = timedelta(days=30)
    size: int = 100
    is_dry: bool = False


def old_runs(before, most):
    return requests.get("https://runs.example.org", params={"before": before, "limit": most}, timeout=10).json()


def delete_run(number):
    requests.delete(f"https://runs.example.org/{number}", timeout=10).raise_for_status()


def approved_by_a_person(ctx, preview, count):
    ctx.logger.info("%s runs are to be deleted: %s", count, preview)
    try:
        answer = ctx.queue.next("approval", timeout=3600)
    except MessageTimeoutError:
        return False, "nobody answered"
    return answer.body["approve"], answer.body["notes"]


@workflow(name="prefect.cleanup")
def cleanup(ctx: Context, config: Retention | None = None):
    if config is None:
        config = Retention()
    cutoff = datetime.now(timezone.utc) - config.period  # expect: W101
    runs = ctx.step("read runs", old_runs, cutoff, config.size * 5)
    if not runs:
        return {"status": "nothing to do", "deleted": 0}
    preview = "\n".join(f"- {run['name']}" for run in runs[:5])
    is_approved, notes = approved_by_a_person(ctx, preview, len(runs))
    if not is_approved:
        return {"status": "rejected", "why": notes}
    if config.is_dry:
        return {"status": "dry run", "would_delete": len(runs)}
    deleted = 0
    for start in range(0, len(runs), config.size):
        for run in runs[start : start + config.size]:
            try:
                ctx.step(f"delete {run['id']}", delete_run, run["id"])
                deleted += 1
            except StepExhaustedError as error:
                print(f"could not delete {run['id']}: {error}")
            time.sleep(0.1)  # expect: W110
    return {"status": "completed", "deleted": deleted}


# An incident whose tools are undone by an object that remembers them (transactional_ai_agent).
@dataclass
class Systems:
    issues: list = field(default_factory=list)
    messages: list = field(default_factory=list)

    def create_issue(self, title):
        number = f"GH-{len(self.issues) + 1}"
        self.issues.append(number)  # expect: W121
        return number

    def send_message(self, text):
        number = f"MSG-{len(self.messages) + 1}"
        self.messages.append(number)  # missed: W121
        return number

    def undo(self):
        for each in [*reversed(self.messages), *reversed(self.issues)]:
            requests.delete(f"https://systems.example.org/{each}", timeout=10)


@workflow(name="prefect.incident")
def incident(ctx: Context, report: dict):
    systems = Systems()
    try:
        number = ctx.step("issue", systems.create_issue, report["title"])
        ctx.step("message", systems.send_message, f"{number}: {report['title']}")
        ctx.step("alert", partial(fetch, "https://pager.example.org/alerts"))
    except StepExhaustedError:
        ctx.step("undo", systems.undo)
        raise
    finally:
        print(f"issues: {systems.issues}")


# A model with samples that are drawn (feature_engineering).
def train(rows, seed):
    return {"rows": len(rows), "seed": seed}


@workflow(name="prefect.training")
def training(ctx: Context, url: str, folds: int):
    rows = ctx.step("rows", fetch, url)
    random.shuffle(rows)  # expect: W102
    noise = np.random.normal(size=len(rows))  # expect: W102
    seeds = [random.Random(fold).random() for fold in range(folds)]
    scores = {}
    for fold, seed in enumerate(seeds):
        scores[fold] = ctx.step(f"train {fold}", train, rows[fold::folds], seed)
    return max(scores, key=lambda fold: scores[fold]["rows"]), float(noise.mean())


# A flow of flows whose parts tell of themselves with the day in their names (flow of flows, run_deployment).
@workflow(name="prefect.part")
def part(ctx: Context, name: str):
    return ctx.step("work", clean, [name])


@workflow(name="prefect.whole")
def whole(ctx: Context, names: list):
    today = datetime.today().strftime("%Y-%m-%d")  # expect: W101
    results = []
    for name in names:
        results.append(ctx.child(f"{name} of {today}", part, name))  # expect: W131
    if not all(results):
        raise RuntimeError("a part has no result")
    return results
