#!/usr/bin/env bash
# Use the HTTP API with curl: upload a file, create a dataset, query it, load a correction, and undo it.
#
#     make serve                       # in another terminal
#     bash examples/http_api.sh [URL]  # default: http://127.0.0.1:8000
#
# If the service requires an API key, set INLAY_API_KEY. /docs of the service describes every request.
set -euo pipefail

url=${1:-http://127.0.0.1:8000}

json=(-H 'Content-Type: application/json')
key=()
[[ -z ${INLAY_API_KEY:-} ]] || key=(-H "Authorization: Bearer $INLAY_API_KEY")

# request METHOD PATH [CURL OPTIONS]: prints the response; exits with the error of the service if there is one
request() {
    local response method=$1 path=$2
    shift 2
    response=$(curl -sS --fail-with-body -X "$method" "${key[@]}" "$@" "$url$path") || { echo "$response" >&2; exit 1; }
    echo "$response"
}

# field NAME: prints a field of the JSON document on standard input, as jq would
field() {
    python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}

# Upload the file. An upload can be used once.
sales=$'id,name,amount\n1,ann,10.50\n2,bob,7.25\n'
upload=$(request POST /v1/files -H 'Content-Type: text/csv' --data-binary "$sales")
upload_id=$(field id <<<"$upload")
echo "uploaded as $upload_id"

# Create a dataset from the upload. inlay infers the types that you don't set.
dataset=$(request POST /v1/datasets "${json[@]}" -d '{
    "label": "Sales by curl",
    "source": {"upload_id": "'"$upload_id"'"},
    "schema": {"columns": [{"name": "amount", "type": "decimal(10,2)"}]}
}')
id=$(field id <<<"$dataset")
table=$(field table_name <<<"$dataset")
echo "created the table datasets.$table with $(field row_count <<<"$dataset") rows"

total() {
    local result
    result=$(request POST /v1/query "${json[@]}" -d '{"sql": "SELECT sum(amount) FROM datasets.'"$table"'"}')
    field rows <<<"$result"
}
echo "total: $(total)"

# A load merges rows by key. With "dry_run": true, it only reports what it would change.
load=$(request POST "/v1/datasets/$id/loads" "${json[@]}" -d '{
    "source": {"inline": {"format": "csv", "content": "id,name,amount\n2,bob,8.00\n3,cy,1.00\n"}},
    "strategy": "upsert",
    "key_columns": ["id"]
}')
echo "the load inserted $(field inserted <<<"$load") row and updated $(field updated <<<"$load") row"
echo "total: $(total)"

# Each load creates a version. A restore copies no data.
request POST "/v1/datasets/$id/restore" "${json[@]}" -d '{"version": 1}' >/dev/null
echo "after the restore: $(total)"

request DELETE "/v1/datasets/$id" >/dev/null
echo "deleted"
