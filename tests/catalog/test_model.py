"""The catalog against a model of it in plain Python: whatever is done, in whatever order, by whomever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from inlay.catalog import Catalog, DataFile, new_id, table_name_from_label
from inlay.errors import (
    ConflictError,
    InlayError,
    JobEndedError,
    NotFoundError,
    TableNameTakenError,
    UploadConsumedError,
    UploadInUseError,
)
from tests.catalog import steps
from tests.catalog.conftest import Backend, Clock

OWNERS = ("one", "two")
LEASE = 60
# Shrinking needs a database for every attempt: turn it on by hand when something fails.
PHASES = (Phase.reuse, Phase.generate)


@dataclass
class ModelJob:
    owner: str
    kind: str
    dataset_id: str | None
    upload_id: str | None
    lease: float
    state: str = "queued"


@dataclass
class ModelDataset:
    name: str
    versions: dict[int, list[str]] = field(default_factory=dict)

    @property
    def current(self) -> int:
        return max(self.versions)


class CatalogMachine(RuleBasedStateMachine):
    """Rules do the same to both sides and compare what they say; the invariant compares all that can be seen."""

    backend: Backend

    uploads = Bundle("uploads")
    datasets = Bundle("datasets")
    jobs = Bundle("jobs")

    @initialize()
    def open(self) -> None:
        self.url = self.backend.migrated()
        self.clock = Clock()
        self.catalogs = {owner: Catalog(self.url, owner=owner, clock=self.clock) for owner in OWNERS}
        self.catalog = Catalog(self.url, owner="observer", clock=self.clock)
        self.now = 0.0
        self.upload_states: dict[str, str] = {}
        self.all_datasets: dict[str, ModelDataset] = {}
        self.all_jobs: dict[str, ModelJob] = {}

    def teardown(self) -> None:
        if hasattr(self, "url"):
            for catalog in (*self.catalogs.values(), self.catalog):
                catalog.close()
            self.backend.drop(self.url)

    # --------------------------------------------------------------------------------------------------- the model
    def active(self) -> Iterator[ModelJob]:
        return (job for job in self.all_jobs.values() if job.state in ("queued", "running"))

    def release(self, owner: str) -> None:
        for job in list(self.active()):
            if job.owner != owner and job.lease < self.now:
                job.state = "failed"

    def writer(self, dataset_id: str | None) -> ModelJob | None:
        running = (job for job in self.active() if job.state == "running")
        return next((job for job in running if dataset_id is not None and job.dataset_id == dataset_id), None)

    def claimed(self, upload_id: str) -> bool:
        return any(job.upload_id == upload_id for job in self.active())

    def upload_error(self, upload_id: str) -> type[InlayError] | None:
        state = self.upload_states[upload_id]
        if state == "deleted":
            return NotFoundError
        if state == "consumed":
            return UploadConsumedError
        return UploadInUseError if self.claimed(upload_id) else None

    def names(self) -> set[str]:
        return {dataset.name.lower() for dataset in self.all_datasets.values()}

    def held_error(self, job_id: str, owner: str, states: tuple[str, ...]) -> type[InlayError] | None:
        job = self.all_jobs[job_id]
        if job.state not in states:
            return JobEndedError
        return None if job.owner == owner else ConflictError

    @contextmanager
    def expect(self, error: type[InlayError] | None) -> Iterator[None]:
        if error is None:
            yield
            return
        with pytest.raises(InlayError) as caught:
            yield
        assert type(caught.value) is error, (caught.value, error)

    # ------------------------------------------------------------------------------------------------------- rules
    @rule(target=uploads)
    def upload(self) -> str:
        made = steps.upload(self.catalog).id
        self.upload_states[made] = "pending"
        return made

    @rule(upload_id=uploads)
    def delete_upload(self, upload_id: str) -> None:
        self.release("observer")
        error = self.upload_error(upload_id)
        with self.expect(error):
            self.catalog.uploads.delete(upload_id)
        if error is None:
            self.upload_states[upload_id] = "deleted"

    @rule(target=jobs, owner=st.sampled_from(OWNERS), upload_id=st.none() | uploads)
    def submit_creation(self, owner: str, upload_id: str | None) -> Any:
        return self.submit(owner, "create", new_id("dataset"), upload_id)

    @rule(target=jobs, owner=st.sampled_from(OWNERS), dataset_id=datasets, upload_id=st.none() | uploads)
    def submit_load(self, owner: str, dataset_id: str, upload_id: str | None) -> Any:
        return self.submit(owner, "load", dataset_id, upload_id)

    def submit(self, owner: str, kind: str, dataset_id: str, upload_id: str | None) -> Any:
        self.release(owner)
        error: type[InlayError] | None = None
        if kind != "create" and dataset_id not in self.all_datasets:
            error = NotFoundError
        elif upload_id is not None:
            error = self.upload_error(upload_id)
        with self.expect(error):
            job = self.catalogs[owner].jobs.create(kind, {}, dataset_id=dataset_id, upload_id=upload_id).job
        if error is not None:
            return multiple()
        self.all_jobs[job.id] = ModelJob(owner, kind, dataset_id, upload_id, self.now + LEASE)
        return job.id

    @rule(job_id=jobs, owner=st.sampled_from(OWNERS))
    def start(self, job_id: str, owner: str) -> None:
        self.release(owner)
        job = self.all_jobs[job_id]
        error = self.held_error(job_id, owner, ("queued",))
        started = False
        with self.expect(error):
            started = self.catalogs[owner].jobs.start(job_id)
        if error is None:
            assert started == (self.writer(job.dataset_id) is None)
            if started:
                job.state, job.lease = "running", self.now + LEASE

    @rule(
        target=datasets, job_id=jobs, owner=st.sampled_from(OWNERS), label=st.sampled_from(["A b", "a-B", "ä B", "2"])
    )
    def create(self, job_id: str, owner: str, label: str) -> Any:
        job = self.all_jobs[job_id]
        error = self.held_error(job_id, owner, ("running",))
        if error is None and job.kind != "create":
            error = ConflictError
        assert job.dataset_id is not None
        new = steps.new_version(job.dataset_id, 1)
        with self.expect(error):
            made = self.catalogs[owner].datasets.create(
                job_id=job_id, label=label, source_type="inline", source_config={}, version=new
            )
        if error is not None:
            return multiple()
        assert made.table_name == table_name_from_label(label, self.names())
        self.all_datasets[made.id] = ModelDataset(made.table_name, {1: [file.path for file in new.files]})
        self.end(job)
        return made.id

    @rule(job_id=jobs, owner=st.sampled_from(OWNERS), base=st.integers(0, 4), keep=st.booleans())
    def commit(self, job_id: str, owner: str, base: int, keep: bool) -> None:
        job = self.all_jobs[job_id]
        dataset = self.all_datasets.get(job.dataset_id or "")
        error = self.held_error(job_id, owner, ("running",))
        if error is None and dataset is None:
            error = NotFoundError
        elif error is None and dataset is not None and dataset.current != base:
            error = ConflictError
        paths = [steps.path(job.dataset_id or "", base + 1)]
        if keep and dataset is not None:
            paths += dataset.versions[dataset.current]
        paths = list(dict.fromkeys(paths))
        new = steps.new_version(job.dataset_id or "", 1, files=[DataFile(path, 1, 1) for path in paths])
        with self.expect(error):
            self.catalogs[owner].versions.commit(job.dataset_id or "", base, new, job_id=job_id)
        if error is None and dataset is not None:
            dataset.versions[base + 1] = paths
            self.end(job)

    @rule(job_id=jobs, owner=st.sampled_from(OWNERS), number=st.integers(1, 4))
    def restore(self, job_id: str, owner: str, number: int) -> None:
        job = self.all_jobs[job_id]
        dataset = self.all_datasets.get(job.dataset_id or "")
        error = self.held_error(job_id, owner, ("running",))
        if error is None and (dataset is None or number not in dataset.versions):
            error = NotFoundError
        with self.expect(error):
            self.catalogs[owner].versions.restore(job.dataset_id or "", number, job_id=job_id)
        if error is None and dataset is not None:
            dataset.versions[dataset.current + 1] = dataset.versions[number]
            self.end(job)

    def end(self, job: ModelJob) -> None:
        job.state = "succeeded"
        if job.upload_id is not None:
            self.upload_states[job.upload_id] = "consumed"

    @rule(job_id=jobs, owner=st.sampled_from(OWNERS))
    def fail(self, job_id: str, owner: str) -> None:
        error = self.held_error(job_id, owner, ("queued", "running"))
        with self.expect(error):
            self.catalogs[owner].jobs.fail(job_id, {"code": "x"})
        if error is None:
            self.all_jobs[job_id].state = "failed"

    @rule(job_id=jobs)
    def cancel(self, job_id: str) -> None:
        self.release("observer")
        job = self.all_jobs[job_id]
        ended = job.state not in ("queued", "running")
        with self.expect(JobEndedError if ended else None):
            self.catalog.jobs.cancel(job_id)
        if job.state == "queued":
            job.state = "cancelled"

    @rule(owner=st.sampled_from(OWNERS))
    def heartbeat(self, owner: str) -> None:
        mine = {job_id for job_id, job in self.all_jobs.items() if job.owner == owner and job in list(self.active())}
        assert self.catalogs[owner].jobs.heartbeat().held == mine
        for job_id in mine:
            self.all_jobs[job_id].lease = self.now + LEASE

    @rule(seconds=st.sampled_from([1, 40, 90]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds=seconds)
        self.now += seconds

    @rule(dataset_id=datasets, name=st.sampled_from(["a_b", "A_B_2", "other"]))
    def rename(self, dataset_id: str, name: str) -> None:
        dataset = self.all_datasets.get(dataset_id)
        others = {other.name.lower() for key, other in self.all_datasets.items() if key != dataset_id}
        error = NotFoundError if dataset is None else TableNameTakenError if name.lower() in others else None
        with self.expect(error):
            self.catalog.datasets.rename(dataset_id, table_name=name)
        if error is None and dataset is not None:
            dataset.name = name

    @rule(dataset_id=consumes(datasets))
    def delete(self, dataset_id: str) -> None:
        known = dataset_id in self.all_datasets
        with self.expect(None if known else NotFoundError):
            self.catalog.datasets.delete(dataset_id)
        if known:
            del self.all_datasets[dataset_id]
            for job in self.active():
                if job.dataset_id == dataset_id and job.state == "queued":
                    job.state = "cancelled"

    @rule(keep=st.integers(1, 3))
    def expire(self, keep: int) -> None:
        self.clock.advance(seconds=0.001)
        expected = 0
        for dataset in self.all_datasets.values():
            for number in sorted(dataset.versions)[:-keep]:
                del dataset.versions[number]
                expected += 1
        assert self.catalog.versions.expire(keep_versions=keep, keep_days=0) == expected

    # --------------------------------------------------------------------------------------------------- invariants
    @invariant()
    def both_sides_are_the_same(self) -> None:
        if not hasattr(self, "url"):
            return
        uploads = {upload.id: upload.status for upload in self.catalog.uploads.list(status="all").items}
        assert uploads == {key: state for key, state in self.upload_states.items() if state != "deleted"}
        assert {j.id: j.state for j in self.catalog.jobs.list().items} == {k: j.state for k, j in self.all_jobs.items()}
        assert {d.id: d.table_name for d in self.catalog.datasets.list().items} == {
            key: dataset.name for key, dataset in self.all_datasets.items()
        }
        garbage = {item.path for item in self.catalog.garbage.due(self.clock.time.replace(year=3000))}
        for key, dataset in self.all_datasets.items():
            self.compare(key, dataset, garbage)

    def compare(self, dataset_id: str, dataset: ModelDataset, garbage: set[str]) -> None:
        listed = [version.version for version in self.catalog.versions.list(dataset_id).items]
        assert listed == sorted(dataset.versions, reverse=True)
        for number, paths in dataset.versions.items():
            snapshot = self.catalog.versions.snapshot(dataset_id, number)
            assert [file.path for file in snapshot.files] == paths
            assert snapshot.dataset.version == dataset.current
        live = {path for paths in dataset.versions.values() for path in paths}
        assert self.catalog.versions.live_paths(dataset_id) == live
        assert not live & garbage
        assert f"datasets/{dataset_id}" not in garbage


def test_the_catalog_behaves_like_its_model(backend: Backend) -> None:
    machine = type("Machine", (CatalogMachine,), {"backend": backend})
    examples = settings().max_examples
    few = examples // (5 if backend.name == "postgresql" else 2)  # a database for each
    run_machine(machine, settings=settings(max_examples=few, stateful_step_count=40, phases=PHASES))
