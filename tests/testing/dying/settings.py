SECRET_KEY = "only for tests"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_rq",
    "durable",
    "tests.testing.dying",
]
DATABASES = {
    name: {"ENGINE": "django.db.backends.sqlite3", "NAME": f"file:dying_{name}?mode=memory&cache=shared"}
    for name in ("default", "other")
}
RQ_QUEUES = {"default": {"URL": "redis://127.0.0.1:1/0"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
