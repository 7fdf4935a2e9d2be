from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0027_rates"),
    ]

    operations = [
        migrations.AddField(
            model_name="grouptally",
            name="turns_from",
            field=models.BigIntegerField(default=0),
        ),
    ]
