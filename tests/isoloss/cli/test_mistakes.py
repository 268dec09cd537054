"""Mistakes that people make in command lines, tables and manifests: none is accepted, and each is told with its place and a remedy.

The third table, of chart values, is tests/deploy/test_chart_mistakes.py.
"""

import csv
import math
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.isoloss.cli.conftest import PutInCluster
from tests.support.command_line import Ended, Isoloss

EXAMPLES = Path(__file__).parents[3] / "crds" / "examples"
EXAMPLE = (EXAMPLES / "dense-sweep.yaml").read_text()
PREDICTION = """---
apiVersion: isoloss.dev/v1alpha1
kind: HyperparamPrediction
metadata: {name: next, namespace: research}
spec:
  sweepRef: {name: dense}
  checkpoint: {uri: "s3://models/next"}
  budget: {flops: "2.1e21"}
"""
ASKED = "--initial-loss 2.75 --params 1e9 --cpt-tokens 5e9"
LIBRARIES = (
    "Input should",
    "input should",
    "Value error",
    "instance of",
    "valid tuple",
    "unable to parse",
    "<unicode string>",
)
"""Words of the libraries behind us, for their own users."""

Row = dict[str, str]


def each(column: str, change: Callable[[Row], object]) -> Callable[[int, Row], Row]:
    return lambda _, row: {**row, column: str(change(row))}


def one(column: str, cell: str) -> Callable[[int, Row], Row]:
    return lambda number, row: {**row, column: cell} if number == 5 else row


def scaled(column: str, factor: float) -> Callable[[int, Row], Row]:
    return each(column, lambda row: f"{float(row[column]) * factor:.10g}")


TABLES: dict[str, Callable[[int, Row], Row]] = {
    "length": lambda _, row: {name: row[name] for name in row if name != "sequence_length"},
    "batch-tokens": scaled("batch_size", 2048),
    "billions": scaled("tokens", 1e-9),
    "steps": each("tokens", lambda r: int(float(r["tokens"]) / 2048 / float(r["batch_size"]))),
    "millions": scaled("params", 1e-6),
    "letters": each("params", lambda row: f"{float(row['params']) / 1e6:g} Mio"),
    "perplexity": each("loss", lambda row: 2.71828 ** float(row["loss"])),
    "rates": scaled("learning_rate", 1e4),
    "negative": one("loss", "-2.1"),
    "nan": one("loss", "NaN"),
    "logarithms": each("learning_rate", lambda row: f"{math.log10(float(row['learning_rate'])):.3f}"),
    "accuracy": each("loss", lambda _: "0.43"),
    "no-tokens": each("tokens", lambda _: "0"),
    "thousands": each("sequence_length", lambda _: "2k"),
    "maybe": each("diverged", lambda _: "maybe"),
    "empty-rate": one("learning_rate", ""),
    "comma": each("loss", lambda row: row["loss"].replace(".", ",")),
    "devices": lambda _, row: {**row, "batch_size": str(int(row["batch_size"]) // 8), "world_size": "8"},
    "percent": each("learning_rate", lambda row: f"{float(row['learning_rate']) * 100:g}%"),
}  # fmt: skip


@pytest.fixture(scope="module")
def desk(
    tmp_path_factory: pytest.TempPathFactory, synthetic_table: Path, synthetic_laws: Path
) -> Path:
    """A folder with a table, its laws, and tables that somebody got wrong."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "laws.json").write_bytes(synthetic_laws.read_bytes())
    text = synthetic_table.read_text()
    (folder / "runs.csv").write_text(text)
    rows = list(csv.DictReader(text.splitlines()))
    for name, change in TABLES.items():
        changed = [change(number, row) for number, row in enumerate(rows)]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(changed[0]))
            writer.writeheader()
            writer.writerows(changed)
    (folder / "semicolons.csv").write_text(text.replace(",", ";").replace(".", ","))
    (folder / "tabs.csv").write_text(text.replace(",", "\t").replace(".", ","))
    (folder / "headless.csv").write_text(text.partition("\n")[2])
    (folder / "twice-header.csv").write_text(
        "\n".join(
            f"{row},{'3.1' if number else 'loss'}" for number, row in enumerate(text.splitlines())
        )
    )
    (folder / "utf16.csv").write_bytes(text.encode("utf-16"))
    (folder / "link.csv").symlink_to("runs.csv")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text(text.splitlines()[0] + "\n")
    (folder / "binary.csv").write_bytes(bytes(range(256)))
    (folder / "other.json").write_text("{}")
    (folder / "runs.feather").write_bytes(b"ARROW1\xff\xff")
    (folder / "runs.txt").write_text(text)
    return folder


COMMANDS = [
    # What is typed, the place, the remedy.
    ("predcit laws.json", "'predcit'", "Did you mean 'predict'?"),
    ("fit", "RUNS", "CSV or Parquet tables"),
    ("fit run.csv", "run.csv", "did you mean runs.csv?"),
    ("fit .", ".", ".csv, .csv.gz, .tsv, .parquet"),
    ("fit runs.xlsx", "runs.xlsx", "save a table as CSV or Parquet"),
    ("fit https://x/runs.csv", "https://x/runs.csv", "download the table"),
    ("fit file:///nowhere", "file:///nowhere", "give a sweep's spec.storage.uri"),
    ("fit s3://bucket/../x", "s3://bucket/../x", "'..' is not allowed"),
    ("fit length.csv", "row 1, column sequence_length", "--column sequence_length=EXPRESSION"),
    ("fit batch-tokens.csv", "column batch_size", "sequences are expected; if it is in tokens, write 64"),
    ("fit billions.csv", "row 2, column tokens", "as billions 5e+08"),
    ("fit steps.csv", "row 2, column tokens", "read as steps they are 4.99974e+08"),
    ("fit millions.csv", "row 2, column params", "a count is expected, not millions"),
    ("fit letters.csv", "row 2, column params", "write it in digits"),
    ("fit perplexity.csv", "row 2, column loss", "nats per token"),
    ("fit rates.csv", "row 2, column learning_rate", "the learning rate itself is expected"),
    ("fit negative.csv", "row 7, column loss", "nats per token are expected"),
    ("fit nan.csv", "row 7, column loss", "mark a run that diverged"),
    ("fit empty-rate.csv", "row 7, column learning_rate", "fill it in"),
    ("fit comma.csv", "row 2, column loss", "write 4.4423"),
    ("fit semicolons.csv", "row 2, column params", "write 30000000.0"),
    ("fit tabs.csv", "row 2, column params", "write 30000000.0"),
    ("fit headless.csv", "row 1", "it must be the header: run, params"),
    ("fit logarithms.csv", "row 2, column learning_rate", "the learning rate itself is expected"),
    ("fit accuracy.csv", "row 2, column loss", "nothing can be fitted to a constant"),
    ("fit no-tokens.csv", "row 2, column tokens", "tokens trained so far are expected"),
    ("fit thousands.csv", "row 2, column sequence_length", "write it in digits"),
    ("fit maybe.csv", "row 2, column diverged", "write true or false"),
    ("fit empty.csv", "empty.csv", "a table has a header and a row for each evaluation"),
    ("fit header.csv", "row 2", "a table has one for each evaluation"),
    ("fit binary.csv", "row 2", "save it as CSV in UTF-8"),
    ("fit runs.csv runs.csv", "run 'n30m-b32-lr0.000125'", "give a run once"),
    ("fit runs.csv --weights Raw", "--weights", "leave it out"),
    ("fit runs.csv --form power", "--form power", "PowerLawOfLoss or LinearInLogCompute"),
    ("fit runs.csv --irreducible-loss -1", "--irreducible-loss", "positive"),
    ("fit runs.csv --bootstrap-samples 5", "--bootstrap-samples 5", "must be at least 20"),
    ("fit runs.csv --bootstrap-samples many", "--bootstrap-samples many", "a whole number"),
    ("fit runs.csv --exclude nobody", "run nobody", "check its spelling"),
    ("fit runs.csv --out runs.csv", "--out runs.csv", "name another one"),
    ("fit length.csv --settings runs.csv --out runs.csv", "--out runs.csv", "name another one"),
    ("fit runs.csv --out link.csv", "--out link.csv", "name another one"),
    ("report laws.json --runs file://runs.csv --out runs.csv", "--out runs.csv", "name another one"),
    ("fit runs.csv --out .", ".", "name a file"),
    ("fit runs.csv --irreducable-loss 1", "--irreducable-loss", "--irreducible-loss"),
    ("fit runs.csv --column loss=val", "--column loss=val", "found run, params"),
    ("fit runs.csv --column params=30M", "--column params=30M", "write 30000000"),
    ("fit runs.csv --column 'loss=log(loss)'", "--column loss=log(loss)", "it takes numbers, names of columns"),
    ("fit runs.csv --settings laws.json", "--settings laws.json", ".tsv, .parquet"),
    ("fit runs.csv --column loss", "--column loss", "write NAME=EXPRESSION"),
    ("fit runs.csv --column los=loss", "--column los=loss", "did you mean loss"),
    (f"predict {ASKED}", "LAWS", "A file from isoloss fit"),
    (f"predict law.json {ASKED}", "law.json", "did you mean laws.json?"),
    (f"predict laws.json published:step-law {ASKED}", "published:step-law", "only tables of runs may be several: leave it out"),
    (f"predict laws.json runs.csv {ASKED}", "laws.json", "neither a .csv"),
    (f"predict laws.json --settings runs.csv {ASKED}", "--settings", "no table is read: leave it out"),
    (f"predict other.json {ASKED}", "other.json: holds no laws", "the file that isoloss fit writes with --out"),
    (f"predict runs.feather {ASKED}", "runs.feather: not UTF-8 text", "save a table as CSV or Parquet"),
    (f"predict runs.txt {ASKED}", "runs.txt: not JSON", "save a table as CSV or Parquet"),
    (f"predict az://x/y {ASKED}", "az://x/y", "s3://, gs://, file://"),
    ("predict laws.json", "--total-flops", "give exactly one of --cpt-flops, --cpt-tokens"),
    ("predict laws.json --params 1e9 --cpt-tokens 5e9", "--cpt-tokens", "needs --initial-loss"),
    (f"predict laws.json {ASKED} --cpt-flops 3e19", "--cpt-flops", "exactly one of"),
    ("predict laws.json --initial-loss 2.75 --cpt-tokens 5e9", "--cpt-tokens", "needs --params"),
    ("predict laws.json --initial-loss 2.75 --params 1e9 --cpt-tokens 2,5B", "--cpt-tokens", "write 55B"),
    ("predict laws.json --initial-loss 2.75 --params 1e9 --cpt-tokens 5", "budget of 5 tokens", "60e9"),
    ("predict laws.json --initial-loss 2.75 --params 8 --cpt-tokens 5B", "8 parameters", "as 8e9"),
    ("predict laws.json --initial-loss 15.6 --params 1e9 --cpt-tokens 5B", "initial loss 15.6", "unit"),
    ("predict laws.json --initial-loss 0.9 --params 1e9 --cpt-tokens 5B", "initial loss 0.9", "unit"),
    ("predict laws.json --initial-loss 2,75 --params 1e9 --cpt-tokens 5B", "--initial-loss 2,75", "write 2.75"),
    ("predict laws.json --initial-loss -2 --params 1e9 --cpt-tokens 5B", "--initial-loss", "positive"),
    ("predict laws.json --initial-loss 2.5 --params 700B --cpt-tokens 1T", "target size",
     "Train a larger proxy, of at least 7.07e+08 parameters"),
    ("predict laws.json --initial-loss 2.75 --cpt-flops 5e9", "budget of 5e+09 FLOPs", "60e9"),
    ("predict laws.json --initial-loss 2.75 --cpt-flops 5B", "--cpt-flops 5B", "write 5000000000"),
    (f"predict laws.json {ASKED} --batch-size 524288", "524288 sequences", "write 256 sequences"),
    (f"predict laws.json {ASKED} --batch-size 300000", "300000 sequences", "write 146 sequences"),
    (f"predict laws.json {ASKED} --batch-size 146.5", "--batch-size 146.5", "a whole number. Sequences"),
    (f"predict laws.json {ASKED} --batch-size 4000000", "--batch-size 4000000", "Sequences"),
    (f"predict laws.json {ASKED} --round-to 0", "--round-to 0", "must be at least 1"),
    (f"predict laws.json {ASKED} --composition Papper", "--composition Papper", "Measured or Paper"),
    (f"predict laws.json {ASKED} --composition-error 0.1", "--composition-error", "requires 2 arguments"),
    (f"predict laws.json {ASKED} --total-flops 1e20", "--total-flops", "exactly one of"),
    ("predict published:steplaw --total-flops 1e20", "'published:steplaw'", "published:step-law"),
    ("predict published:chinchilla --total-flops 1e21", "published:chinchilla", "published:step-law"),
    (f"predict published:step-law {ASKED}", "published:step-law", "give --total-flops"),
    ("predict published:step-law --total-flops 1e20", "published:step-law", "(--params)"),
    ("predict published:porian --total-flops 1e20 --batch-size 64", "--batch-size", "laws of your own"),
    ("validate laws.json --initial-loss 2.75", "budget", "give --cpt-flops or --cpt-tokens"),
    (f"validate laws.json {ASKED} --share 30", "--share", "at most 1, as in 0.3 for 30%, not 30"),
    (f"validate laws.json runs.csv {ASKED} --share 0.2", "--share", "leave it out"),
    (f"validate laws.json runs.csv {ASKED}", "runs.csv", "alike in all but learning rate, batch size"),
    (f"validate published:step-law {ASKED}", "published:step-law", "laws of your own"),
    (f"validate laws.json {ASKED} --factor 1", "--factor", "must be above 1"),
    (f"validate laws.json {ASKED} --tolerance 0", "--tolerance", "0 is not a positive, finite number"),
    (f"validate laws.json {ASKED} --noise -1", "--noise", "-1 is not a positive, finite number"),
    (f"validate laws.json {ASKED} --tolerance 0.02", "--tolerance", "is for judging probes"),
    (f"validate laws.json {ASKED} --noise 0.002", "--noise", "is for judging probes"),
    (f"validate laws.json runs.csv {ASKED} --factor 3", "--factor", "is for planning probes"),
    (f"validate laws.json runs.csv {ASKED} --seeds 5", "--seeds", "is for planning probes"),
    ("report laws.json", "--out", "HTML file"),
    ("report laws.json --out r.pdf", "--out r.pdf", "the page is HTML: name it r.html"),
    (f"report runs.csv --out r.html {ASKED}", "runs.csv", "fit laws to it first: isoloss fit runs.csv --out laws.json"),
    (f"validate runs.csv {ASKED}", "runs.csv", "fit laws to it first: isoloss fit runs.csv --out laws.json"),
    ("report laws.json --out laws.json", "--out laws.json", "name another one"),
    ("report laws.json --out r.html --direct-grid-flops 1e20", "--direct-grid-flops", "needs --runs"),
    (f"report published:step-law --out r.html {ASKED}", "published:step-law", "laws of your own"),
    ("open dense", "dense", "scalingsweep/NAME"),
    ("watch laws.json", "laws.json", "scalingsweep/NAME"),
    ("watch ssweep/dense --every 0", "--every 0", "must be at least 1"),
    ("init --checkpoint meta-llama/Llama-3-8B --corpus s3://c/x --tokens 5B", "--checkpoint", "copy it there first"),
    ("init --checkpoint file:///nowhere --corpus s3://c/x --tokens five", "--tokens", "write 55B"),
    ("init --checkpoint file:///nowhere --corpus s3://c/x --tokens 5B", "--checkpoint", "Hugging Face format"),
    ("init --checkpoint file:///nowhere --corpus s3://c/*.pdf --tokens 5B", "--corpus", "give .parquet"),
    ("plan runs.csv", "runs.csv", "give the file of the sweep"),
    ("plan dense.yaml --utilisation 45", "--utilisation", "at most 1, as in 0.45 for 45%, not 45"),
    ("plan dense.yaml --target-params 8", "--target-params", "write 8 billion as 8B"),
    ("plan dense.yaml --target-params 8B --target-tokens 55", "--target-tokens", "write 55 billion as 55B"),
    ("plan dense.yaml --target-params nan --target-tokens 1e9", "--target-params", "nan is not a count"),
    ("plan dense.yaml --target-params 8B", "--target-params", "--target-tokens together"),
    ("plan dense.yaml --tokens-per-second 1e5 --utilisation 0.4", "--utilisation", "leave one out"),
    ("plan dense.yaml --tokens-per-second 1e5 --peak-flops 2e15", "--peak-flops", "--tokens-per-second already says"),
    ("plan dense.yaml --tokens-per-second 0", "--tokens-per-second", "0 is not a positive"),
    ("plan dense.yaml --price-per-hour -1", "--price-per-hour", "-1 is not a positive"),
    ("quickstart --folder .", "--folder", "name another folder"),
    ("quickstart --folder laws.json", "--folder: laws.json", "name another folder"),
    ("fit runs.csv --column tokens=step*batch_size", "--column tokens=step*batch_size", "found run, params"),
    ("fit runs.csv --column 'tokens=params*'", "--column tokens=params*", "it takes numbers, names of columns"),
    ("fit runs.csv --settings runs.csv", "row 3, column run", "one row per run is expected"),
    ("fit nowhere.csv", "nowhere.csv", "check its path"),
    ("fit laws.json", "laws.json", "laws go to isoloss predict"),
    ("fit devices.csv", "column batch_size", "--column 'batch_size=batch_size*world_size'"),
    ("fit twice-header.csv", "column loss", "twice"),
    ("fit percent.csv", "row 2, column learning_rate", "is not a number: write 0.0"),
    ("fit utf16.csv", "utf16.csv", "save it as CSV in UTF-8"),
    (f"predict laws.json {ASKED} --pretraining-learning-rate 3", "pre-trained at", "Leave that rate out"),
    (f"predict laws.json {ASKED} --pretraining-tokens 1", "--pretraining-tokens: 1 tokens", "as in 1e12 or 1T"),
    (f"predict laws.json {ASKED} --sequence-length 2k", "--sequence-length 2k", "write it in digits"),
    (f"predict laws.json {ASKED} --composition-error -1 0.2", "--composition-error: -1", "give 0 or more"),
    (f"predict laws.json {ASKED} --initial-loss-standard-error -1", "--initial-loss-standard-error: -1", "give 0 or more"),
    (f"predict laws.json {ASKED} --batch-size 256 --round-to 64", "--round-to", "leave --batch-size out"),
    ("report laws.json --out r.html --known-optimum 2e-4 175", "--known-optimum", "ask for one, or leave it out"),
    ("quickstart --folder laws.json/x", "--folder: laws.json/x: laws.json is a file", "name another folder"),
    ("init --tokens 5B", "--checkpoint is missing", "Folder of the checkpoint"),
    ("plan dense.yaml --peak-flops 989", "--peak-flops", "write 989 TFLOPs as 989e12"),
    ("plan utf16.csv", "utf16.csv: not UTF-8 text", "save it as UTF-8"),
    ("plan dense.yaml --utilisation 0", "--utilisation", "0 is not a positive"),
    ("predict laws.json --total-flops 1e20 --initial-loss 2.7", "--initial-loss", "takes no --initial-loss"),
    ("predict laws.json --total-flops 1e20 --composition paper", "--composition", "takes no --composition:"),
    ("predict laws.json --total-flops 1e20 --pretraining-tokens 1T", "--pretraining-tokens", "takes no --pretraining-tokens"),
    ("predict laws.json --total-flops 3e19 --batch-size 64", "--batch-size", "needs --params"),
    ("predict laws.json --total-flops much", "--total-flops much", "is not a number"),
    ("predict laws.json --initial-loss 2.75 --cpt-flops 3e19 --pretraining-tokens 1e9", "--pretraining-tokens", "needs --params"),
    (f"predict laws.json {ASKED} --flops-per-token 6e12", "--flops-per-token", "6e+12 is 6e+03 for each of --params"),
    (f"predict laws.json {ASKED} --flops-per-token 6", "--flops-per-token", "6 is 6e-09 for each of --params"),
    ("fit s3://bucket/sweeps/one --column loss=eval/loss", "--column", "no table is read: leave it out"),
    *((f"{command} {option} {value}", option, "no table is read")
      for command in ("report laws.json --out r.html", f"validate laws.json {ASKED}")
      for option, value in (("--column", "loss=eval/loss"), ("--settings", "runs.csv"))),
    ("report laws.json --out r.html --total-flops 1e20 --known-optimum -1 175", "--known-optimum: -1 is not", "positive"),
]  # fmt: skip


def assert_reported(ended: Ended, place: str, remedy: str) -> None:
    """Refused, or with a warning, in words that name both and none of a library's own."""
    reported = " ".join(f"{ended.err} {ended.out}".split())
    assert ended.code != 0 or "warning: " in reported, "silently accepted"
    assert place in reported
    assert remedy in reported
    for words in LIBRARIES:
        assert words not in reported


@pytest.mark.parametrize(("typed", "place", "remedy"), COMMANDS, ids=[row[0] for row in COMMANDS])
def test_a_mistake_in_a_command_line_or_a_table_is_told_with_place_and_remedy(
    isoloss: Isoloss,
    desk: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    place: str,
    remedy: str,
) -> None:
    monkeypatch.chdir(desk)
    (desk / "dense.yaml").write_text(EXAMPLE)
    assert_reported(isoloss(*shlex.split(typed)), place, remedy)


def test_without_a_cluster_there_is_no_log_of_kubectls_libraries(
    isoloss: Isoloss, tmp_path: Path, put_in_cluster: PutInCluster
) -> None:
    put_in_cluster()
    log = (
        'E1129 08:15:32.338246   17928 memcache.go:265] "Unhandled Error" err="connection refused"'
    )
    reported = "The connection to the server localhost:8080 was refused - did you specify the right host or port?"
    (tmp_path / "kubectl").write_text(
        f"#!/bin/sh\ncat >&2 <<'END'\n{log}\n{reported}\nEND\nexit 1\n"
    )
    for command in ("open", "watch"):
        error = isoloss(command, "scalingsweep/dense").error
        assert error.startswith(f"isoloss: no cluster ({reported}): name one by KUBECONFIG")
        assert "memcache" not in error


RATES, BATCHES = '["1e-4", "2e-4", "5e-4"]', "[64, 128, 256]"
TOKENS, GRID, BUDGET = "tokens: 20000000000", "  grid:\n", '{flops: "2.1e21"}'
MANIFESTS = [
    # In place of this, that; the place, the remedy.
    (RATES, "[1e-4, 2e-4, 5e-4]", "spec.grid.learningRates[0]", 'quote it, as in "0.0001"'),
    (RATES, '["1e-4"]', "spec.grid.learningRates", "3 unless search.strategy is Sequential"),
    (RATES, '["1e-4", "50"]', "spec.grid.learningRates[1]", "at most 10"),
    (RATES, '["1e-4", "5,0e-4"]', "spec.grid.learningRates[1]", "write 5.0e-4"),
    (RATES, "1e-4..5e-4", "spec.grid.learningRates", "must be a list, in [ ]"),
    (BATCHES, "[524288, 1048576]", "spec.grid.batchSizes[1]", "count sequences, not tokens"),
    (BATCHES, "[512k, 1M]", "spec.grid.batchSizes[0]", "count sequences, not tokens"),
    (BATCHES, '["64", "128", "256"]', "spec.grid.batchSizes[0]", "must be 64, without quotes"),
    (BATCHES, "64", "spec.grid.batchSizes", "must be a list, in [ ]"),
    (BATCHES, "", "spec.grid.batchSizes", "fill it in, or leave the field out"),
    (BATCHES, "[64, 128, 256", "line 65, column 5", "check brackets and indentation"),
    (TOKENS, "tokens: 20B", "spec.proxies[0].tokens", "write 20000000000"),
    (TOKENS, 'tokens: "20000000000"', "spec.proxies[0].tokens", "must be 20000000000, without quotes"),
    (TOKENS, "tokens: -1", "spec.proxies[0].tokens", "must be at least 1"),
    (TOKENS, "nodes: 1", "spec.proxies[0].tokens", "is required"),
    ("sequenceLength: 8192", "sequenceLength: 8k", "spec.data.sequenceLength", "a whole number"),
    ("sequenceLength: 8192", "sequenceLength: 16384", "spec.data.sequenceLength", "the 8192 positions"),
    ("sequenceLength: 8192", "sequence_length: 8192", "spec.data.sequence_length", "did you mean sequenceLength?"),
    ("weight: 82", "weight: 82%", "spec.data.domains[0].weight", "a whole number"),
    ("weight: 82", "weight: 0.82", "spec.data.domains[0].weight", "a whole number"),
    ("slimpajama/*.parquet", "slimpajama/*.pdf", "spec.data.domains[0].uri", "give .parquet"),
    ("slimpajama/*.parquet", "slimpajama/2023.en", "spec.data.domains[0].uri", "a folder with /* at its end"),
    ("slimpajama/*.parquet", "slimpajama/*.mds", "spec.data.domains[0].uri", "this is MDS of MosaicML Streaming"),
    ("batchSizes:", "batchSize:", "spec.grid.batchSize", "did you mean batchSizes?"),
    ("parallelism: 9", "paralellism: 9", "spec.paralellism", "did you mean parallelism?"),
    ("parallelism: 9", "parallelism: nine", "spec.parallelism", "a whole number"),
    ("  parallelism: 9", "\tparallelism: 9", "line 70, column 1", "indent with spaces"),
    ("  parallelism: 9", "  parallelism: 9\n  parallelism: 8", "line 71, column 3", "parallelism is in line 70 already: keep one of them"),
    ("  parallelism: 9", "  queue: research", "spec.queue", "localQueueName"),
    (GRID, f"  search: Sequential\n{GRID}", "spec.search", "strategy"),
    (GRID, f"  search: {{strategy: Bayesian}}\n{GRID}", "spec.search.strategy", "Exhaustive or Sequential"),
    ("weights: Averaged", "weights: averaged", "spec.fit.weights", "Averaged or Raw"),
    ('flops: "2e21"', "flops: 2e21", "spec.budget.flops", 'quote it, as in "2e+21"'),
    ("acceleratorHours: 5000", "acceleratorHours: 5000h", "spec.budget.acceleratorHours", "a whole number"),
    ("warmupTokens: 500000000", "warmupTokens: 500M", "spec.optimizer.warmupTokens", "write 500000000"),
    ("warmupTokens: 500000000", 'learningRate: "1e-4"', "spec.optimizer.learningRate", "warmupTokens"),
    ("documentsPerThousand: 5", "documentsPerThousand: 5000", "documentsPerThousand", "at most 500"),
    ("model_type: llama", "model_type: mamba", "model.config.model_type", "use one of llama"),
    ("num_attention_heads: 6", "num_attention_heads: 7", "num_attention_heads", "does not divide hidden"),
    ("num_key_value_heads: 2", "num_key_value_heads: 5", "num_key_value_heads", "does not divide 6"),
    ("hidden_size: 768", 'hidden_size: "768"', "model.config.hidden_size", "a positive integer"),
    ("intermediate_size: 2432", "intermediat_size: 2432", "config.intermediate_size", "is required"),
    ("name: dense-500m", "name: Dense_500M", "spec.proxies[1].name", "lower-case letters"),
    ("  name: dense\n", "  name: Dense_8B\n", "metadata.name of ScalingSweep", "lower-case letters"),
    ("  name: dense\n", "  name: -dense\n", "metadata.name of ScalingSweep", "lower-case letters"),
    ("  name: dense\n", "  name: 7\n", "metadata.name of ScalingSweep", "7 is not text: put it into quotes"),
    ("  name: dense\n", f"  name: {'d' * 64}\n", "metadata.name of ScalingSweep", "has 64 characters, 63 are possible"),
    ("namespace: research", "namespace: Research Team", "metadata.namespace of ScalingSweep", "lower-case letters"),
    ("namespace: research", "namespace: research.team", "metadata.namespace of ScalingSweep", "digits and -,"),
    ("kind: ScalingSweep", "kind: ScalingSweep\nsearch: {}", "search of ScalingSweep", "indent it below spec"),
    ("kind: ScalingSweep", "kind: Scalingsweep", "kind: 'Scalingsweep'", "must be ScalingSweep or HyperparamPrediction"),
    ("- name: trainer", "- name: main", "podTemplate.spec.containers[main]", "name it trainer"),
    ("nvidia.com/gpu: 1,", "gpu: 8,", "limits.gpu: Kubernetes knows no such resource", "nvidia.com/gpu"),
    ("nvidia.com/gpu: 1,", 'nvidia.com/gpu: "1.5",', "limits.nvidia.com/gpu", "a whole number of devices"),
    ("cpu: 16, memory", "cpus: 16, memory", "requests.cpus: Kubernetes knows no such resource", "did you mean cpu?"),
    ("memory: 64Gi", "mem: 64Gi", "limits.mem: Kubernetes knows no such resource", "did you mean memory?"),
    ("nvidia.com/gpu: 1,", "nvidia.com/gpu: one,", "limits.nvidia.com/gpu", "'one' is not a quantity"),
    ("      nodeSelector:", "      hostNetwork: true\n      nodeSelector:", "spec.hostNetwork", "must not be true"),
    (BUDGET, "{tokens: 55B}", "HyperparamPrediction next: spec.budget.tokens", "write 55000000000"),
    (BUDGET, "{flops: 2.1e21}", "spec.budget.flops", "quote it"),
    ('checkpoint: {uri: "s3://models/next"}', "initialLoss: 2.75", "spec.initialLoss", 'quote it, as in "2.75"'),
    ("sweepRef: {name: dense}", "sweepRef: dense", "spec.sweepRef", "fields below it (name)"),
    ("sweepRef: {name: dense}", "sweepRef: {name: moe}", "spec.sweepRef.name", "moe is not in this file"),
    ("  budget: {", "  batchSize: 4000000\n  budget: {", "spec.batchSize", "count sequences, not tokens"),
    ("  budget: {", "  targetParameters: 70B\n  budget: {", "spec.targetParameters", "write 70000000000"),
    # Values of a pod that no schema of the resources has.
    ("memory: 16Gi}", "memory: 16GB}", "podTemplate.spec.containers[trainer].resources.limits.memory", "write 16Gi or 16G"),
    ("memory: 16Gi}", "memory: 16 Gi}", "resources.limits.memory: '16 Gi'", "write 16Gi or 16G"),
    ("cpu: 16, memory", "cpu: sixteen, memory", "resources.requests.cpu: 'sixteen'", "write 2 or 500m"),
    ("operator: Exists", "operator: Exist", "podTemplate.spec.tolerations[0].operator", "must be Exists, Equal"),
    ("effect: NoSchedule", "effect: NoScheduling", "tolerations[0].effect", "NoSchedule, PreferNoSchedule or NoExecute"),
    ("labels: {team: pre-training}", "labels: {team: 7}", "podTemplate.metadata.labels.team", "put it into quotes"),
    ("labels: {team: pre-training}", "labels: {team: pre training}", "podTemplate.metadata.labels.team", "at most 63 letters, digits"),
    ("{nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}", "{gpu: true}", "podTemplate.spec.nodeSelector.gpu", "put it into quotes"),
    ("{nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}", "[gpu]", "podTemplate.spec.nodeSelector", "write NAME: VALUE below it"),
    ("nvidia.com/gpu: 1,", "nvidia.com/gpu: -1,", "limits.nvidia.com/gpu", "a whole number of devices, 0 to"),
    ("head_dim: 128", "head_dim: 63", "proxies[0].model.config.head_dim", "make it even"),
    ("vocab_size: 131072", "vocab_size: 131k", "proxies[0].model.config.vocab_size", "a positive integer"),
    ("model_type: llama", "_model: llama", "proxies[0].model.config", "needs model_type, such as llama"),
    ("kind: ScalingSweep\nmetadata:", "kind: ScalingSweep\nmetdata:", "metdata of ScalingSweep", "did you mean metadata"),
    ("  namespace: research", "  namespce: research", "metadata.namespce of ScalingSweep", "did you mean namespace?"),
    ("spec:\n  storage", "Spec:\n  storage", "Spec of ScalingSweep", "did you mean spec?"),
    ("kind: HyperparamPrediction", "kind: HyperParamPrediction", "kind: 'HyperParamPrediction'", "ScalingSweep or HyperparamPrediction"),
    ("nodeSelector", "nodeselector", "podTemplate.spec.nodeselector", "did you mean nodeSelector?"),
    ("tolerations:", "toleration:", "podTemplate.spec.toleration", "did you mean tolerations?"),
    ("resources: {limits: {nvidia.com/gpu: 1,", "resources: {limit: {nvidia.com/gpu: 1,", "containers[trainer].resources.limit", "did you mean limits?"),
    ("- name: trainer\n            resources:", "- name: trainer\n            resource:", "containers[trainer].resource", "did you mean resources?"),
    ("  parallelism: 9", '  suspend: "yes"', "spec.suspend", "must be true, without quotes"),
    ("  parallelism: 9", "  seeds: 2", "spec.seeds", "is not a field of this resource"),
    ("textField: text, ", "textfield: text, ", "spec.data.domains[0].textfield", "did you mean textField?"),
    ("secretName: sweep-s3", "secretName: {name: sweep-s3}", "spec.storage.secretName", "text"),
    ("secretName: sweep-s3", "secretName: AKIAIOSFODNN7", "spec.storage.secretName", "lower-case"),
    ("acceleratorHours: 5000", "gpuHours: 5000", "spec.budget.gpuHours", "acceleratorHours"),
    ('{uri: "s3://models/next"}', '"s3://models/next"', "spec.checkpoint", "fields below it (podTemplate, secretName, uri)"),
    ("  budget: {", "  composition: measured\n  budget: {", "spec.composition", "Measured or Paper"),
    ("  budget: {", "  publish: dense-8b\n  budget: {", "spec.publish", "fields below it (configMapName"),
    ("  budget: {", "  pretrainingTokens: 1T\n  budget: {", "spec.pretrainingTokens", "write 1000000000000"),
    ("  budget: {", "  pretrainingLearningRate: 3e-4\n  budget: {", "spec.pretrainingLearningRate", "quote it"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "place", "remedy"), MANIFESTS, ids=[row[1] for row in MANIFESTS]
)
def test_a_mistake_in_a_manifest_is_told_with_place_and_remedy(
    isoloss: Isoloss, tmp_path: Path, old: str, new: str, place: str, remedy: str
) -> None:
    text = EXAMPLE + PREDICTION
    assert old in text
    path = tmp_path / "sweep.yaml"
    path.write_text(text.replace(old, new))
    assert_reported(isoloss("plan", path), place, remedy)


@pytest.mark.parametrize("pattern", ["*.gz", "**/part-???.zst", "*.{parquet,json}", "*.PARQUET"])
def test_a_pattern_whose_files_may_be_documents_is_no_mistake(
    isoloss: Isoloss, tmp_path: Path, pattern: str
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(EXAMPLE.replace("slimpajama/*.parquet", f"slimpajama/{pattern}"))
    assert isoloss("plan", path).code == 0
