"""What the bank knows of the transfers that it was asked for."""

import uuid

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0004_late_answers"),
    ]

    operations = [
        migrations.CreateModel(
            name="Transfer",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("token", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("reference", models.CharField(db_index=True, max_length=80)),
                ("amount", models.DecimalField(decimal_places=2, max_digits=9)),
                ("answer_to", models.TextField(editable=False)),
                ("idempotency_key", models.CharField(max_length=300, unique=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "charge",
                    models.OneToOneField(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="transfer",
                        to="shop.charge",
                    ),
                ),
            ],
        ),
    ]
