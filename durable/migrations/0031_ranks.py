"""Priorities and shares: the rank of runs, and the claim that goes by it."""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields
from durable.store.routines.operations import CreateRoutines


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0030_rate_counts"),
    ]

    operations = [
        migrations.CreateModel(
            name="Lane",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", durable.models.fields.NameField(max_length=200)),
                ("head_start", models.IntegerField()),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("queue", "head_start"), name="durable_lane_once")],
            },
        ),
        migrations.CreateModel(
            name="Share",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", durable.models.fields.NameField(max_length=200)),
                ("share", durable.models.fields.NameField(blank=True, max_length=200)),
                ("tag", models.DateTimeField(blank=True, null=True)),
                ("round", models.BigIntegerField(default=0)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("queue", "share"), name="durable_share_once")],
            },
        ),
        migrations.CreateModel(
            name="RunRank",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="ranking",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("priority", durable.models.fields.NameField(blank=True, max_length=200)),
                ("head_start", models.IntegerField()),
                ("share", durable.models.fields.NameField(blank=True, max_length=200)),
                ("weight", models.FloatField()),
            ],
        ),
        migrations.AddField(model_name="run", name="head_start", field=models.IntegerField(blank=True, null=True)),
        migrations.AddField(model_name="run", name="start_tag", field=models.DateTimeField(blank=True, null=True)),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("head_start__isnull", False), ("wake_at__isnull", False))
                & models.Q(("state", "paused"), _negated=True),
                fields=["queue", "head_start", "start_tag", "wake_at", "id"],
                name="durable_run_ranked",
            ),
        ),
        CreateRoutines(
            ["durable_tag_1", "durable_rank_1", "durable_rank_child_1", "durable_claim_ranked_1", "durable_claim_4"]
        ),
    ]
