"""The tables of the project."""

from __future__ import annotations

import uuid

from django.db import migrations, models


class Migration(migrations.Migration):
    """Members and races."""

    initial = True
    dependencies = [("auth", "0012_alter_user_first_name_max_length")]
    operations = [
        migrations.CreateModel(
            "Race",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("name", models.CharField(max_length=100)),
                ("metres", models.IntegerField()),
            ],
        ),
        migrations.CreateModel(
            "Member",
            [
                ("id", models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)),
                ("password", models.CharField(max_length=128)),
                ("last_login", models.DateTimeField(null=True)),
                ("email", models.EmailField(max_length=254, unique=True)),
                ("is_superuser", models.BooleanField(default=False)),
                ("is_staff", models.BooleanField(default=False)),
                ("is_active", models.BooleanField(default=True)),
                ("groups", models.ManyToManyField("auth.group", related_name="user_set", blank=True)),
                ("user_permissions", models.ManyToManyField("auth.permission", related_name="user_set", blank=True)),
            ],
        ),
    ]
