"""Random operations of several owners on the catalog, compared with a model in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from inlay.catalog import Catalog, DataFile, new_id
from inlay.catalog.names import table_name_from_label
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
MOSTLY = st.sampled_from([True, True, True, True, False])
# Shrinking needs a database per attempt. Turn it on by hand after a failure.
PHASES = (Phase.reuse, Phase.generate)


@dataclass
class ModelJob:
    owner: str
    kind: str
    dataset_id: str
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
    """Rules apply the same operation to catalog and model; the invariant compares their states."""

    backend: Backend

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
        self.upload()
        self.start_with_a_dataset()

    def start_with_a_dataset(self) -> None:
        job = steps.create_job(self.catalogs["one"])
        made = steps.finish_creation(self.catalogs["one"], job)
        self.all_jobs[job.id] = ModelJob("one", "create", made.id, None, LEASE, "succeeded")
        self.all_datasets[made.id] = ModelDataset(made.table_name, {1: [steps.path(made.id, 1)]})

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

    def writer(self, dataset_id: str) -> ModelJob | None:
        running = (job for job in self.active() if job.state == "running")
        return next((job for job in running if job.dataset_id == dataset_id), None)

    def is_turn_of(self, job: ModelJob) -> bool:
        rivals = [other for other in self.active() if other.dataset_id == job.dataset_id]
        return rivals[0] is job and self.writer(job.dataset_id) is None

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
    def job(self, data: st.DataObject, *wanted: str, kinds: str = "create load") -> tuple[str, ModelJob, str]:
        """Draw a job, usually with these states and kinds, and an owner, usually its own."""
        fitting = [key for key, job in self.all_jobs.items() if job.state in wanted and job.kind in kinds.split()]
        job_id = data.draw(st.sampled_from(fitting if fitting and data.draw(MOSTLY) else list(self.all_jobs)))
        job = self.all_jobs[job_id]
        return job_id, job, job.owner if data.draw(MOSTLY) else data.draw(st.sampled_from(OWNERS))

    @rule()
    def upload(self) -> None:
        self.upload_states[steps.upload(self.catalog).id] = "pending"

    @precondition(lambda self: self.upload_states)
    @rule(data=st.data())
    def delete_upload(self, data: st.DataObject) -> None:
        upload_id = data.draw(st.sampled_from(list(self.upload_states)))
        self.release("observer")
        error = self.upload_error(upload_id)
        with self.expect(error):
            self.catalog.uploads.delete(upload_id)
        if error is None:
            self.upload_states[upload_id] = "deleted"

    @rule(data=st.data(), owner=st.sampled_from(OWNERS))
    def submit_creation(self, data: st.DataObject, owner: str) -> None:
        self.submit(data, owner, "create", new_id("dataset"))

    @precondition(lambda self: self.all_datasets)
    @rule(data=st.data(), owner=st.sampled_from(OWNERS))
    def submit_load(self, data: st.DataObject, owner: str) -> None:
        known = st.sampled_from(list(self.all_datasets))
        self.submit(data, owner, "load", data.draw(known) if data.draw(MOSTLY) else new_id("dataset"))

    def submit(self, data: st.DataObject, owner: str, kind: str, dataset_id: str) -> None:
        free = [upload_id for upload_id in self.upload_states if self.upload_error(upload_id) is None]
        upload_id = data.draw(st.sampled_from([None, *(free if data.draw(MOSTLY) else self.upload_states)]))
        self.release(owner)
        error: type[InlayError] | None = None
        if kind != "create" and dataset_id not in self.all_datasets:
            error = NotFoundError
        elif upload_id is not None:
            error = self.upload_error(upload_id)
        with self.expect(error):
            job = self.catalogs[owner].jobs.create(kind, {}, dataset_id=dataset_id, upload_id=upload_id).job
        if error is None:
            self.all_jobs[job.id] = ModelJob(owner, kind, dataset_id, upload_id, self.now + LEASE)
            if data.draw(MOSTLY):
                self.start_as(job.id, owner)

    @precondition(lambda self: any(self.active()))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        job_id, _, owner = self.job(data, "queued")
        self.start_as(job_id, owner)

    def start_as(self, job_id: str, owner: str) -> None:
        job = self.all_jobs[job_id]
        self.release(owner)
        error = self.held_error(job_id, owner, ("queued",))
        started = False
        with self.expect(error):
            started = self.catalogs[owner].jobs.start(job_id)
        if error is None:
            assert started == self.is_turn_of(job)
            if started:
                job.state, job.lease = "running", self.now + LEASE

    @precondition(lambda self: any(self.active()))
    @rule(data=st.data(), label=st.sampled_from(["A b", "ä-B", "2"]))
    def create(self, data: st.DataObject, label: str) -> None:
        job_id, job, owner = self.job(data, "running", kinds="create")
        error = self.held_error(job_id, owner, ("running",))
        if error is None and job.kind != "create":
            error = ConflictError
        new = steps.new_version(job.dataset_id, 1)
        with self.expect(error):
            made = self.catalogs[owner].datasets.create(
                job_id=job_id, label=label, source_type="inline", source_config={}, version=new
            )
        if error is None:
            assert made.table_name == table_name_from_label(label, self.names())
            self.all_datasets[made.id] = ModelDataset(made.table_name, {1: [file.path for file in new.files]})
            self.end(job)

    @precondition(lambda self: any(job.kind == "load" for job in self.active()))
    @rule(data=st.data(), behind=st.sampled_from([0, 0, 0, 1, -1]), keep=st.booleans())
    def commit(self, data: st.DataObject, behind: int, keep: bool) -> None:
        job_id, job, owner = self.job(data, "running", kinds="load")
        dataset = self.all_datasets.get(job.dataset_id)
        base = (0 if dataset is None else dataset.current) - behind
        error = self.held_error(job_id, owner, ("running",))
        if error is None and dataset is None:
            error = NotFoundError
        elif error is None and behind:
            error = ConflictError
        paths = [steps.path(job.dataset_id, base + 1)]
        if keep and dataset is not None:
            paths += [path for path in dataset.versions[dataset.current] if path not in paths]
        new = steps.new_version(job.dataset_id, 1, files=[DataFile(path, 1, 1) for path in paths])
        with self.expect(error):
            self.catalogs[owner].versions.commit(job.dataset_id, base, new, job_id=job_id)
        if error is None and dataset is not None:
            dataset.versions[base + 1] = paths
            self.end(job)

    @precondition(lambda self: any(job.kind == "load" for job in self.active()))
    @rule(data=st.data(), number=st.integers(1, 4))
    def restore(self, data: st.DataObject, number: int) -> None:
        job_id, job, owner = self.job(data, "running", kinds="load")
        dataset = self.all_datasets.get(job.dataset_id)
        error = self.held_error(job_id, owner, ("running",))
        if error is None and (dataset is None or number not in dataset.versions):
            error = NotFoundError
        with self.expect(error):
            self.catalogs[owner].versions.restore(job.dataset_id, number, job_id=job_id)
        if error is None and dataset is not None:
            dataset.versions[dataset.current + 1] = dataset.versions[number]
            self.end(job)

    def end(self, job: ModelJob) -> None:
        job.state = "succeeded"
        if job.upload_id is not None:
            self.upload_states[job.upload_id] = "consumed"

    @precondition(lambda self: any(self.active()))
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        job_id, job, owner = self.job(data, "queued", "running")
        error = self.held_error(job_id, owner, ("queued", "running"))
        with self.expect(error):
            self.catalogs[owner].jobs.fail(job_id, {"code": "x"})
        if error is None:
            job.state = "failed"

    @precondition(lambda self: any(self.active()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id, job, _ = self.job(data, "queued", "running")
        self.release("observer")
        with self.expect(JobEndedError if job.state not in ("queued", "running") else None):
            self.catalog.jobs.cancel(job_id)
        if job.state == "queued":
            job.state = "cancelled"

    @rule(owner=st.sampled_from(OWNERS), seconds=st.sampled_from([1, 40, 90]))
    def wait(self, owner: str, seconds: int) -> None:
        """Let time pass while one owner sends heartbeats."""
        mine = [job for job in self.active() if job.owner == owner]
        assert len(self.catalogs[owner].jobs.heartbeat().held) == len(mine)
        for job in mine:
            job.lease = self.now + LEASE
        self.clock.advance(seconds=seconds)
        self.now += seconds

    @precondition(lambda self: self.all_datasets)
    @rule(data=st.data(), name=st.sampled_from(["a_b", "A_B_2", "other"]))
    def rename(self, data: st.DataObject, name: str) -> None:
        dataset_id = data.draw(st.sampled_from(list(self.all_datasets)))
        others = {other.name.lower() for key, other in self.all_datasets.items() if key != dataset_id}
        error = TableNameTakenError if name.lower() in others else None
        with self.expect(error):
            self.catalog.datasets.rename(dataset_id, table_name=name)
        if error is None:
            self.all_datasets[dataset_id].name = name

    @precondition(lambda self: len(self.all_datasets) > 1)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        dataset_id = data.draw(st.sampled_from(list(self.all_datasets)))
        self.catalog.datasets.delete(dataset_id)
        del self.all_datasets[dataset_id]
        for job in list(self.active()):
            if job.dataset_id == dataset_id and job.state == "queued":
                job.state = "cancelled"

    @precondition(lambda self: any(len(dataset.versions) > 1 for dataset in self.all_datasets.values()))
    @rule(keep=st.integers(1, 3))
    def expire(self, keep: int) -> None:
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
    few = examples // (5 if backend.name == "postgresql" else 2)  # each example needs a database
    run_machine(machine, settings=settings(max_examples=few, stateful_step_count=60, phases=PHASES))
