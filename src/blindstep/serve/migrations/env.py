"""How Alembic runs: on the connection that `blindstep.serve.database` hands over."""

from alembic import context

from blindstep.serve.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
