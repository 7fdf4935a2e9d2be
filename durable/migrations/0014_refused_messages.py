"""Messages that their run has refused."""

from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    """Allow one more state of a message."""

    dependencies = [("durable", "0013_operate_run_text")]

    operations = [
        migrations.RemoveConstraint(model_name="queuemessage", name="durable_message_state_is_known"),
        migrations.AlterField(
            model_name="queuemessage",
            name="state",
            field=durable.models.fields.NameField(
                choices=[
                    ("pending", "pending"),
                    ("received", "received"),
                    ("completed", "completed"),
                    ("refused", "refused"),
                ],
                default="pending",
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            model_name="queuemessage",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["pending", "received", "completed", "refused"])),
                name="durable_message_state_is_known",
            ),
        ),
    ]
