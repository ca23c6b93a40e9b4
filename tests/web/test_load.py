"""Loading rows on the page: choose, see what it would do, do it, take it back."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from inlay.incremental import STRATEGIES
from inlay.server.models import Changes, LoadPlan, PlannedFile
from inlay.web.load.choices import Choices, default_strategy, fit_of
from inlay.web.load.plan import rewritten_share, segments
from inlay.web.load.strategies import CHOICES
from inlay.workspace.keys import KeyAdvice
from inlay.workspace.requests import WHOLE
from tests.web.conftest import Visit

EVIL = "<img src=x onerror=alert(1)>"
ORDERS = "".join(f"{number},item {number},{number}.50,open\n" for number in range(1, 61))


# ------------------------------------------------------------------------------------------------- without a browser
def test_every_strategy_is_offered_and_explained_as_the_truth_table_has_it() -> None:
    assert set(CHOICES) == {*STRATEGIES, *WHOLE}
    words = {"keep": "kept", "replace": "replaced", "insert": "inserted", "skip": "ignored", "delete": "deleted"}
    looks = {"keep": "kept", "replace": "new", "insert": "new", "skip": "skipped", "delete": "gone"}
    for name, strategy in STRATEGIES.items():
        choice = CHOICES[name]
        assert (choice.summary, choice.needs_key) == (strategy.summary, True)
        assert f"Key in both: {words[strategy.in_both]}." in choice.meaning
        assert f"Only in the source: {words[strategy.only_in_source]}." in choice.meaning
        assert f"Only in the dataset: {words[strategy.only_in_target]}." in choice.meaning
        after = {cell.key: cell.kind for cell in choice.after}
        told = (strategy.only_in_target, strategy.in_both, strategy.only_in_source)
        assert after == dict(zip("ABC", (looks[each] for each in told), strict=True))
        assert [cell.key for cell in choice.source].count("B") == 1 + strategy.reduces_source
    assert not any(CHOICES[name].needs_key for name in WHOLE)


def test_a_request_has_what_its_strategy_takes() -> None:
    choices = Choices(upload_id="upld_x", key_columns=["id"], order_by=["at"], sets_aside=True)
    for name in CHOICES:
        choices.strategy = name
        request = choices.request(dry_run=True)
        request.check()
        assert (request.dry_run, request.on_error) == (True, "quarantine")
        assert list(request.dedup_order_by) == (["at"] if name == "deduplicate" else [])
        assert choices.missing is None
    assert Choices(strategy="append").missing is not None
    assert "key columns" in str(Choices(upload_id="upld_x", strategy="upsert").missing)


def test_a_key_makes_upsert_the_first_choice() -> None:
    assert default_strategy(KeyAdvice((), (("id",),))) == "upsert"
    assert default_strategy(KeyAdvice((), ())) == "append"
    assert (fit_of(["a", "c"], ["a", "b"]).missing, fit_of(["a", "c"], ["a", "b"]).extra) == (["b"], ["c"])


def plan_of(files: list[PlannedFile], **more: Any) -> LoadPlan:
    counts = dict.fromkeys(("source_count", "rejected_count", "inserted", "updated", "deleted", "unchanged"), 0)
    changes = Changes(columns=[], inserted=[], updated=[], deleted=[])
    told: dict[str, Any] = {"row_count": 0, "version": 1, "files_rewritten": 0, "bytes_rewritten": 0, **counts, **more}
    return LoadPlan(dataset_id="data_x", strategy="upsert", files=files, changes=changes, **told)


def test_the_strip_has_a_part_for_every_file_or_every_kind() -> None:
    def files(number: int, kind: str) -> list[PlannedFile]:
        return [
            PlannedFile(path=f"/d/v1/{n}.parquet", operation=kind, reason="so", rows=1, bytes=10) for n in range(number)
        ]

    few = segments(files(2, "preserved") + files(1, "rewritten"))
    assert [(part.operation, part.bytes) for part in few] == [("preserved", 10), ("preserved", 10), ("rewritten", 10)]
    assert few[2].title == "v1/0.parquet: rewritten, so"
    many = segments(files(1000, "preserved") + files(3, "rewritten"))
    assert [(part.operation, part.bytes, part.title) for part in many] == [
        ("rewritten", 30, "3 files rewritten"),
        ("preserved", 10_000, "1,000 files untouched"),
    ]
    assert (
        rewritten_share(plan_of(files(100, "preserved"), bytes_rewritten=15))
        == "15 bytes of 1.0 KB (1.5%) would be written again."
    )
    assert "None of the 1.0 KB" in rewritten_share(plan_of(files(100, "preserved")))


# ---------------------------------------------------------------------------------------------------- in a real browser
def made(api: httpx.Client, text: str, label: str = "Orders") -> dict[str, Any]:
    source = {"inline": {"format": "csv", "content": text}}
    answer = api.post("/v1/datasets", json={"label": label, "source": source})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def uploaded(api: httpx.Client, text: str) -> str:
    answer = api.post("/v1/files", content=text.encode(), headers={"Content-Type": "text/csv"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def rows(api: httpx.Client, sql: str) -> list[list[Any]]:
    answer = api.post("/v1/query", json={"sql": sql})
    assert answer.status_code == 200, answer.text
    found: list[list[Any]] = answer.json()["rows"]
    return found


def look(page: Page) -> None:
    page.get_by_role("button", name="See what it would do").click()


@pytest.mark.spark
def test_a_correction_is_looked_at_loaded_and_taken_back(visit: Visit, api: httpx.Client) -> None:
    label = f"Orders {EVIL}"
    dataset = made(api, f'order_id,name,price,"{EVIL}"\n' + ORDERS, label)
    page = visit.go(f"/datasets/{dataset['id']}/load")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Load into {label}")
    expect(page.get_by_role("button", name="See what it would do")).to_be_disabled()
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked()
    expect(page.get_by_role("button", name="order_id unique in the data")).to_be_visible()
    visit.shoot("load-begin")
    correction = (
        f'order_id,name,price,"{EVIL}"\n7,item 7,7.50,{EVIL}\n8,item 8,,open\n9,item 9,9.50,open\n99,new,1.00,open\n'
    )
    page.locator("input[type=file]").set_input_files(
        {"name": f"fix {EVIL}.csv", "mimeType": "text/csv", "buffer": correction.encode()}
    )
    first = page.get_by_role("region", name="The first rows")
    expect(first.get_by_role("cell", name=EVIL)).to_be_visible()
    expect(first.get_by_role("cell", name="NULL")).to_be_visible()
    visit.shoot("load-chosen")
    look(page)
    expect(page.get_by_role("heading", name="What it would do")).to_be_visible()
    shown = page.get_by_role("listitem")
    expect(shown.filter(has_text="would be inserted")).to_have_text("1would be inserted")
    expect(shown.filter(has_text="would be updated")).to_have_text("3would be updated, 1 of them equal already")
    changed = page.get_by_role("region", name="Changed cells")
    expect(changed.locator("tbody")).to_have_text([f"7{EVIL}open{EVIL}", "8price8.5NULL"])
    expect(changed.locator("del")).to_have_text(["open", "8.5"])
    expect(page.get_by_role("region", name="New rows").get_by_role("cell").first).to_have_text("99")
    expect(page.get_by_role("img", name="Files: 1 rewritten, new ones")).to_be_visible()
    visit.shoot("load-plan")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Loaded as version 2")).to_be_visible()
    visit.shoot("load-done")
    table = dataset["table_name"]
    assert rows(api, f"SELECT price FROM datasets.{table} WHERE order_id IN (8, 99) ORDER BY order_id") == [
        [None],
        [1.0],
    ]
    page.get_by_role("button", name="Undo: go back to version 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Go back").click()
    expect(page.get_by_role("status").filter(has_text="Back to version 1")).to_be_visible()
    assert rows(api, f"SELECT count(*), sum(price) FROM datasets.{table}") == [[60, 1860.0]]
    assert api.get(f"/v1/datasets/{dataset['id']}").json()["version"] == 3


@pytest.mark.spark
def test_what_is_wrong_is_told_in_its_place_and_the_choices_stay(visit: Visit, api: httpx.Client) -> None:
    dataset = made(api, "id,name,n\n1,a,1\n2,b,2\n")
    upload_id = uploaded(api, "id,name,n\n1,first,1\n1,second,many\n3,third,3\n3,fourth,4\n")
    page = visit.go(f"/datasets/{dataset['id']}/load?upload={upload_id}")
    expect(page.get_by_text("1 of the first 4 rows would not fit")).to_be_visible()
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked()
    look(page)
    problem = page.get_by_role("alert")
    bad = problem.locator("tbody tr")
    expect(bad.get_by_role("cell").nth(0)).to_have_text("3")
    expect(bad.get_by_role("cell").nth(2)).to_have_text("many")
    visit.shoot("load-bad-rows")
    problem.get_by_role("button", name="Set these rows aside and look again").click()
    expect(problem).to_contain_text("1 source row repeats a key")
    expect(page.get_by_label("Set them aside, and load the rest")).to_be_checked()
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked()
    problem.get_by_role("button", name="Keep the last row of each key").click()
    expect(page.get_by_label("Deduplicate", exact=True)).to_be_checked()
    expect(page.get_by_role("listitem").filter(has_text="set aside")).to_contain_text("1")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Loaded as version 2")).to_be_visible()
    assert rows(api, f"SELECT id, name FROM datasets.{dataset['table_name']} ORDER BY id") == [
        [1, "first"],
        [2, "b"],
        [3, "fourth"],
    ]
    assert api.get(f"/v1/files/{upload_id}").json()["status"] == "consumed"
    page.goto(f"{visit.url}/datasets/{dataset['id']}/load?upload={upload_id}")
    expect(page.get_by_role("alert")).to_contain_text("used already")


@pytest.mark.spark
def test_rows_of_a_query_are_loaded_by_keyboard_alone(visit: Visit, api: httpx.Client) -> None:
    dataset = made(api, "id,name\n" + "".join(f"{number},a\n" for number in range(1, 1501)))
    table = f"datasets.{dataset['table_name']}"
    page = visit.go(f"/datasets/{dataset['id']}/load")
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked()

    def use(sql: str) -> None:
        page.get_by_role("button", name="Or rows that a query finds").press("Enter")
        page.get_by_label("SELECT").fill(sql)
        page.get_by_role("button", name="Use this query").press("Enter")

    use("SELECT 5 AS id FROM nowhere")
    expect(page.get_by_role("alert")).to_contain_text("nowhere")
    page.reload()
    use("SELECT 5 AS id")
    expect(page.get_by_role("alert")).to_contain_text("The source lacks 1 column of the dataset: name")
    page.get_by_role("button", name="Choose another").press("Enter")
    use(f"SELECT a.id, b.name FROM {table} a, {table} b, {table} c WHERE a.id * b.id * c.id % 8009 = 7")
    expect(page.get_by_role("region", name="The first rows").get_by_role("cell").first).to_be_visible()
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked()
    page.get_by_role("button", name="See what it would do").press("Enter")
    page.get_by_role("button", name="Cancel").press("Enter")
    expect(page.get_by_text("Cancelled. Nothing changed.")).to_be_visible()
    page.get_by_role("button", name="Choose another").press("Enter")
    use(f"SELECT id + 1 AS id, name FROM {table} WHERE id > 1490")
    expect(page.get_by_role("region", name="The first rows").get_by_role("cell").first).to_be_visible()
    page.get_by_label("Upsert", exact=True).press("ArrowDown")
    expect(page.get_by_label("Insert", exact=True)).to_be_checked()
    page.get_by_role("button", name="See what it would do").press("Enter")
    expect(page.get_by_role("region", name="New rows").locator("tbody")).to_have_text("1501a")
    page.get_by_role("button", name="Load", exact=True).press("Enter")
    expect(page.get_by_role("status").filter(has_text="Loaded as version 2")).to_be_visible()
    page.get_by_role("button", name="See the dataset").press("Enter")
    page.wait_for_url(f"{visit.url}/datasets/{dataset['id']}")


@pytest.mark.spark
def test_what_others_do_meanwhile_is_neither_overlooked_nor_taken_back_unseen(visit: Visit, api: httpx.Client) -> None:
    dataset = made(api, "id,name\n1,ann\n", "Shared by two")
    place = f"/v1/datasets/{dataset['id']}/loads"

    def somebody_appends(row: str) -> None:
        inline = {"format": "csv", "content": f"id,name\n{row}\n"}
        api.post(place, json={"source": {"inline": inline}, "strategy": "append"}).raise_for_status()

    page = visit.go(f"/datasets/{dataset['id']}/load")
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked()  # the page is at rest
    page.get_by_role("button", name="Or rows that a query finds").press("Enter")
    page.get_by_label("SELECT").fill("SELECT 9 AS id, 'zoe' AS name")
    page.get_by_role("button", name="Use this query").press("Enter")
    expect(page.get_by_role("region", name="The first rows").get_by_role("cell").first).to_be_visible()
    look(page)
    expect(page.get_by_role("button", name="Load", exact=True)).to_be_visible()
    somebody_appends("2,bob")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Somebody else changed the dataset after this look.")
    assert api.get(f"/v1/datasets/{dataset['id']}").json()["version"] == 2
    look(page)
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Loaded as version 3")).to_be_visible()
    somebody_appends("3,cy")
    page.get_by_role("button", name="Undo: go back to version 2").click()
    expect(page.get_by_role("dialog")).to_contain_text("Somebody else made version 4 meanwhile")
    page.get_by_role("dialog").get_by_role("button", name="Go back").click()
    expect(page.get_by_text("What was loaded stays as version 3.")).to_be_visible()
