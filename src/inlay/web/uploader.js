// A drop zone. It sends files one after another to POST /v1/files, like any other client.
const TYPES = {
  csv: "text/csv", tsv: "text/tab-separated-values", txt: "text/csv", json: "application/json",
  ndjson: "application/x-ndjson", jsonl: "application/x-ndjson", parquet: "application/vnd.apache.parquet",
};
const ENCODINGS = { gz: "gzip", zst: "zstd" };
const ENDED = ["failed", "cancelled"];
const MAX_NAME = 200; // characters
const SPEED_SECONDS = 5; // The displayed speed is the average of the last seconds.

function headersFor(name) {
  const endings = name.toLowerCase().split(".").slice(1);
  const encoding = ENCODINGS[endings.at(-1)];
  const type = TYPES[encoding ? endings.at(-2) : endings.at(-1)] || "application/octet-stream";
  const headers = { "Content-Type": `${type}; name="${encoded(name)}"` };
  return encoding ? { ...headers, "Content-Encoding": encoding } : headers;
}

function encoded(name) {
  try { return encodeURIComponent([...name].slice(0, MAX_NAME).join("")); } catch { return ""; } // The name ends within a surrogate pair.
}

function bytes(count) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (count >= 1000 && at < units.length - 1) { count /= 1000; at += 1; }
  return `${at && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[at]}`;
}

function duration(seconds) {
  if (seconds < 1) return "less than a second";
  return seconds < 90 ? `${Math.ceil(seconds)} s` : `${Math.ceil(seconds / 60)} min`;
}

// The speed in bytes per second between the first and the last mark.
function speedOf(marks) {
  const [first, last] = [marks[0], marks.at(-1)];
  return (last.sent - first.sent) / Math.max((last.at - first.at) / 1000, 0.001);
}

export default {
  template: `
    <div class="inlay-uploader">
      <label class="inlay-drop" :class="{ 'inlay-drop-over': isOver }">
        <input type="file" :multiple="multiple" class="inlay-drop-input" @change="add($event.target.files); $event.target.value = ''">
        <strong>{{ text }}</strong>
        <span class="inlay-note">CSV, TSV, JSON, NDJSON, or Parquet, optionally compressed as .gz or .zst</span>
      </label>
      <ul class="inlay-transfers" v-if="files.length">
        <li v-for="file in files" :key="file.key" :data-state="file.state">
          <div class="inlay-transfer-line">
            <span class="inlay-transfer-name">{{ file.name }}</span>
            <span class="inlay-note">{{ file.message }}</span>
            <button v-if="file.state === 'sending' || file.state === 'waiting'" type="button" @click="cancel(file)"
                    :aria-label="'Cancel upload of ' + file.name">Cancel</button>
            <button v-if="file.state === 'failed'" type="button" @click="retry(file)"
                    :aria-label="'Retry upload of ' + file.name">Retry</button>
          </div>
          <progress v-if="file.state === 'sending'" :value="file.sent" :max="file.size" :aria-label="'Upload of ' + file.name"></progress>
        </li>
      </ul>
      <div class="inlay-visually-hidden" role="status">{{ announcement }}</div>
    </div>`,
  props: { multiple: Boolean, text: String },
  data() { return { files: [], depth: 0, created: 0, announcement: "" }; },
  computed: {
    isOver() { return this.depth > 0; },
    isBusy() { return this.files.some((file) => file.state === "sending"); },
  },
  mounted() {
    this.listeners = { dragenter: this.enter, dragover: this.over, dragleave: this.leave, drop: this.drop, beforeunload: this.warn };
    for (const [name, listener] of Object.entries(this.listeners)) window.addEventListener(name, listener);
  },
  unmounted() {
    for (const [name, listener] of Object.entries(this.listeners)) window.removeEventListener(name, listener);
    for (const file of this.files) file.request?.abort();
  },
  methods: {
    // ---------------------------------------------------------------------------------------------------- drag and drop
    hasFiles(event) { return [...(event.dataTransfer?.types || [])].includes("Files"); },
    enter(event) { if (this.hasFiles(event)) { event.preventDefault(); this.depth += 1; } },
    over(event) { if (this.hasFiles(event)) event.preventDefault(); },
    leave(event) { if (this.hasFiles(event)) this.depth = Math.max(0, this.depth - 1); },
    drop(event) {
      this.depth = 0;
      if (!this.hasFiles(event)) return;
      event.preventDefault();
      const items = [...event.dataTransfer.items].filter((item) => item.kind === "file");
      const folders = items.map((item) => item.webkitGetAsEntry?.()).filter((entry) => entry?.isDirectory).map((entry) => entry.name);
      this.add([...event.dataTransfer.files].filter((file) => !folders.includes(file.name)));
      for (const name of folders) this.reject(name, "Folders can't be uploaded. Drop the files inside the folder instead.");
    },
    warn(event) { if (this.isBusy) event.preventDefault(); }, // Leaving the page now would abort the upload.
    // ---------------------------------------------------------------------------------------------------- uploads
    add(list) {
      const chosen = this.multiple ? [...list] : [...list].slice(0, 1);
      this.files = this.files.filter((file) => !ENDED.includes(file.state));
      const isAlone = chosen.length === 1 && !this.files.length;
      for (const file of chosen) this.files.push({ ...this.entry(file.name, "waiting", "Waiting"), file, size: file.size, isAlone });
      this.next();
    },
    entry(name, state, message) { return { key: this.created++, name, state, message, size: 0, sent: 0, request: null, isDiscarded: false }; },
    reject(name, reason) { this.files.push(this.entry(name, "cancelled", reason)); },
    next() {
      const file = this.isBusy ? null : this.files.find((each) => each.state === "waiting");
      if (file) this.send(file);
    },
    send(file) {
      const request = new XMLHttpRequest();
      const marks = [{ at: performance.now(), sent: 0 }];
      Object.assign(file, { request, state: "sending", message: "Starting", sent: 0, isDiscarded: false });
      request.open("POST", "/v1/files");
      for (const [name, value] of Object.entries(headersFor(file.name))) request.setRequestHeader(name, value);
      request.upload.onprogress = (event) => this.advance(file, marks, event.loaded);
      request.onload = () => this.handleResponse(file, request);
      request.onerror = () => this.end(file, "failed", "The connection was lost, or the file changed during the upload. Nothing was stored.");
      request.onabort = () => this.end(file, "cancelled", "Cancelled");
      request.send(file.file);
    },
    advance(file, marks, sent) {
      const now = performance.now();
      marks.push({ at: now, sent });
      while (marks.length > 2 && now - marks[1].at > SPEED_SECONDS * 1000) marks.shift();
      const speed = speedOf(marks);
      const left = sent < file.size ? `${duration((file.size - sent) / Math.max(speed, 1))} left` : "storing";
      file.sent = sent;
      if (!file.isDiscarded) file.message = `${bytes(sent)} of ${bytes(file.size)} · ${bytes(speed)}/s · ${left}`;
    },
    handleResponse(file, request) {
      if (request.status === 401) { location.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`; return; }
      let answer = {};
      try { answer = JSON.parse(request.responseText); } catch { /* The status code below describes the failure. */ }
      if (request.status !== 201) {
        this.end(file, "failed", [answer.detail || `The service responded with HTTP status ${request.status}.`, answer.hint].filter(Boolean).join(" "));
      } else if (file.isDiscarded) {
        fetch(`/v1/files/${answer.id}`, { method: "DELETE" }).finally(() => this.end(file, "cancelled", "Cancelled"));
      } else {
        this.files = this.files.filter((each) => each !== file);
        this.end(file, "done", `Uploaded ${bytes(file.size)}`);
        this.$emit("uploaded", { id: answer.id, name: file.name, size: file.size, is_alone: file.isAlone });
      }
    },
    end(file, state, message) {
      Object.assign(file, { state, message, request: null });
      this.announcement = `${file.name}: ${message}`;
      this.next();
    },
    // If the service already has all bytes, delete the upload after its response.
    cancel(file) {
      if (!file.request) this.end(file, "cancelled", "Cancelled");
      else if (file.sent < file.size) file.request.abort();
      else Object.assign(file, { isDiscarded: true, message: "Cancelling" });
    },
    retry(file) { Object.assign(file, { state: "waiting", message: "Waiting" }); this.next(); },
  },
};
