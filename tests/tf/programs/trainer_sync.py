"""The full trainer, synchronous: the gradients of both workers are averaged before they are applied
(SyncReplicasOptimizer).
"""

import trainer
from client import check, data, note

CLUSTER = {"ps": 2, "worker": 2}

STEPS = 1500

workers = [trainer.Worker(index, trainer.supervised, STEPS, data("sync"), True) for index in range(2)]
trainer.finish(workers, 200)
accuracy = workers[0].said["accuracy"]
note(f"accuracy {accuracy:.3f} after {STEPS} steps; the workers took {workers[0].steps_said} and {workers[1].steps_said}")
check(accuracy >= 0.95, accuracy)
# Each takes part in every step; a gradient that comes too late is dropped and its worker goes on.
check(all(abs(worker.steps_said - STEPS) <= 0.05 * STEPS for worker in workers), [worker.steps_said for worker in workers])
