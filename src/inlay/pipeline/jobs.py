"""Work of a conversion as Spark jobs, named after what they do. Every answer of a task says how many rows it stands
for; Spark adds them up, and the sum is what a conversion reports."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from inlay.engines.base import Watch
from inlay.engines.spark_tasks import Kernel, TaskJobs
from inlay.errors import ConversionFailedError

__all__ = ["Totals", "run"]


class Totals(NamedTuple):
    """What Spark added up over all tasks of a job, and the job group by which its event log knows it."""

    job: str
    rows: int
    rejected: int


def run(
    spark: Any, what: str, kernel: Kernel, tasks: Sequence[Any], progress: Watch | None = None
) -> tuple[list[Any], Totals]:
    """Answers in the order of the tasks, and their totals. An InlayError of a task is raised here."""
    job = f"inlay-{what}-{uuid.uuid4().hex}"
    jobs = TaskJobs(spark, ConversionFailedError, progress)
    answers = jobs.run(kernel, tasks, tag=job, counted=("rows", "rejected"))
    return list(answers), Totals(job, **answers.totals)
