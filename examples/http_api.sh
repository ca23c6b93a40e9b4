#!/usr/bin/env bash
# The HTTP API with curl: upload a file, make it a table, ask SQL, load a correction by key, undo it.
#
#     make serve                       # in another terminal
#     bash examples/http_api.sh [URL]  # http://127.0.0.1:8000 unless given
#
# A service that asks for a key finds it in INLAY_API_KEY. /docs of the service describes every request.
set -euo pipefail

url=${1:-http://127.0.0.1:8000}

json=(-H 'Content-Type: application/json')
key=()
[[ -z ${INLAY_API_KEY:-} ]] || key=(-H "Authorization: Bearer $INLAY_API_KEY")

# request METHOD PATH [MORE OF CURL]: the answer; an error ends the script with the problem as the service tells it
request() {
    local answer method=$1 path=$2
    shift 2
    answer=$(curl -sS --fail-with-body -X "$method" "${key[@]}" "$@" "$url$path") || { echo "$answer" >&2; exit 1; }
    echo "$answer"
}

# field NAME: that field of the JSON on stdin (jq would do as well)
field() {
    python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}

# The bytes first. An upload is used once.
sales=$'id,name,amount\n1,ann,10.50\n2,bob,7.25\n'
upload=$(request POST /v1/files -H 'Content-Type: text/csv' --data-binary "$sales")
upload_id=$(field id <<<"$upload")
echo "uploaded as $upload_id"

# What they are to become. Types are inferred; those that are given win.
dataset=$(request POST /v1/datasets "${json[@]}" -d '{
    "label": "Sales by curl",
    "source": {"upload_id": "'"$upload_id"'"},
    "schema": {"columns": [{"name": "amount", "type": "decimal(10,2)"}]}
}')
id=$(field id <<<"$dataset")
table=$(field table_name <<<"$dataset")
echo "$(field row_count <<<"$dataset") rows are now the table datasets.$table"

total() {
    local answer
    answer=$(request POST /v1/query "${json[@]}" -d '{"sql": "SELECT sum(amount) FROM datasets.'"$table"'"}')
    field rows <<<"$answer"
}
echo "total: $(total)"

# A load brings rows in by key. With "dry_run": true it would only say what it would do.
load=$(request POST "/v1/datasets/$id/loads" "${json[@]}" -d '{
    "source": {"inline": {"format": "csv", "content": "id,name,amount\n2,bob,8.00\n3,cy,1.00\n"}},
    "strategy": "upsert",
    "key_columns": ["id"]
}')
echo "the load inserted $(field inserted <<<"$load") and updated $(field updated <<<"$load")"
echo "total: $(total)"

# Every load is a version; going back moves no data.
request POST "/v1/datasets/$id/restore" "${json[@]}" -d '{"version": 1}' >/dev/null
echo "after going back: $(total)"

request DELETE "/v1/datasets/$id" >/dev/null
echo "deleted"
