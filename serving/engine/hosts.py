"""JAX's own side of several hosts: their devices become one list, and collectives go between them."""

import jax

from serving.errors import SetupError

# Lost hosts are noticed by the leader's stream, in seconds. This is for what that one cannot see, and it must outlast a
# host that is only busy: JAX aborts every process when it is over.
_HEARTBEAT_SECONDS = 60
_START_SECONDS = 300


def join_runtime(runtime: str, processes: int, process: int) -> None:
    """Before anything else of JAX: `jax.devices()` then are those of all hosts, in the same order on each.

    `runtime` is HOST:PORT of the coordinator, which listens there and nowhere else, in process 0.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # where the device is a CPU
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from us
    jax.distributed.initialize(
        runtime,
        processes,
        process,
        cluster_detection_method="deactivate",  # nothing is guessed from the environment
        initialization_timeout=_START_SECONDS,
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        coordinator_bind_address=runtime,
    )
    if (jax.process_count(), jax.process_index()) != (processes, process):
        raise SetupError(
            f"this is process {process} of {processes}, and JAX counts it as {jax.process_index()} of "
            f"{jax.process_count()}: on a TPU slice process ids follow the numbers of its workers",
            param="process_id",
        )
