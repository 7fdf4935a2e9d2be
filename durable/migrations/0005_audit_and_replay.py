"""What an action came to in words, and where a run that goes on with another's history started.

With defaults in the database, so that processes of the version before can go on inserting.
"""

from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    dependencies = [("durable", "0004_run_ended")]

    operations = [
        migrations.AddField(
            model_name="operatoraction",
            name="detail",
            field=durable.models.fields.SafeTextField(blank=True, db_default="", default=""),
        ),
        migrations.AddField(
            model_name="run",
            name="began_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="seed",
            field=durable.models.fields.NameField(blank=True, db_default="", default="", max_length=200),
        ),
    ]
