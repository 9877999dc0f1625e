"""How a deployment names a Postgres, wherever it does."""

PASSWORD_VARIABLE = "WEFT_POSTGRES_PASSWORD"
SCHEMES = ("postgres://", "postgresql://")
