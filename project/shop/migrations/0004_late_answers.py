"""Services that do their work and do not answer, charges that are found by the shop's key, and ends of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0003_fault_switches")]

    operations = [
        migrations.AddField(
            model_name="charge", name="request", field=models.CharField(blank=True, db_index=True, max_length=300)
        ),
        migrations.AddField(
            model_name="fault",
            name="is_late",
            field=models.BooleanField(
                default=False,
                help_text="Do what is asked, and then fail to answer. Otherwise nothing is done.",
                verbose_name="late",
            ),
        ),
        migrations.AlterField(
            model_name="order",
            name="status",
            field=models.CharField(
                choices=[
                    ("placed", "Placed"),
                    ("paid", "Paid"),
                    ("sent", "Sent"),
                    ("refunded", "Refunded"),
                    ("unpaid", "Unpaid"),
                    ("cancelled", "Cancelled"),
                    ("stopped", "Stopped"),
                ],
                default="placed",
                max_length=9,
            ),
        ),
    ]
