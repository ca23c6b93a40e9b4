// A drop zone. Files go straight to POST /v1/files, one after the other, as any other client's would.
const TYPES = {
  csv: "text/csv", tsv: "text/tab-separated-values", txt: "text/csv", json: "application/json",
  ndjson: "application/x-ndjson", jsonl: "application/x-ndjson", parquet: "application/vnd.apache.parquet",
};
const ENCODINGS = { gz: "gzip", zst: "zstd" };

function headersFor(name) {
  const endings = name.toLowerCase().split(".").slice(1);
  const encoding = ENCODINGS[endings.at(-1)];
  const type = TYPES[encoding ? endings.at(-2) : endings.at(-1)] || "application/octet-stream";
  return encoding ? { "Content-Type": type, "Content-Encoding": encoding } : { "Content-Type": type };
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

export default {
  template: `
    <div class="inlay-uploader">
      <label class="inlay-drop" :class="{ 'inlay-drop-over': isOver }"
             @dragenter.prevent="isOver = true" @dragover.prevent="isOver = true" @dragleave="isOver = false"
             @drop.prevent="isOver = false; add($event.dataTransfer.files)">
        <input type="file" :multiple="multiple" class="inlay-drop-input" @change="add($event.target.files); $event.target.value = ''">
        <strong>{{ text }}</strong>
        <span class="inlay-note">CSV, TSV, JSON, NDJSON or Parquet, also as .gz or .zst</span>
      </label>
      <ul class="inlay-transfers" aria-live="polite">
        <li v-for="file in files" :key="file.key" :data-state="file.state">
          <div class="inlay-transfer-line">
            <span class="inlay-transfer-name">{{ file.name }}</span>
            <span class="inlay-note">{{ file.told }}</span>
            <button v-if="file.state === 'sending' || file.state === 'waiting'" type="button" @click="cancel(file)"
                    :aria-label="'Cancel the upload of ' + file.name">Cancel</button>
            <button v-if="file.state === 'failed'" type="button" @click="retry(file)">Try again</button>
          </div>
          <progress v-if="file.state === 'sending'" :value="file.sent" :max="file.size" :aria-label="'Upload of ' + file.name"></progress>
        </li>
      </ul>
    </div>`,
  props: { multiple: Boolean, text: String },
  data() { return { files: [], isOver: false, made: 0 }; },
  methods: {
    add(list) {
      const chosen = this.multiple ? [...list] : [...list].slice(0, 1);
      for (const file of chosen) {
        this.files.push({ key: this.made++, file, name: file.name, size: file.size, sent: 0, state: "waiting", told: "waiting" });
      }
      this.next();
    },
    next() {
      if (this.files.some((file) => file.state === "sending")) return;
      const file = this.files.find((each) => each.state === "waiting");
      if (file) this.send(file);
    },
    send(file) {
      const request = new XMLHttpRequest();
      const began = performance.now();
      file.request = request;
      file.state = "sending";
      file.told = "0 bytes";
      request.open("POST", "/v1/files");
      for (const [name, value] of Object.entries(headersFor(file.name))) request.setRequestHeader(name, value);
      request.upload.onprogress = (event) => {
        const speed = event.loaded / Math.max((performance.now() - began) / 1000, 0.001);
        file.sent = event.loaded;
        file.told = `${bytes(event.loaded)} of ${bytes(file.size)} · ${bytes(speed)}/s · ` +
          (event.loaded < file.size ? `${duration((file.size - event.loaded) / speed)} left` : "storing");
      };
      request.onload = () => this.answered(file, request);
      request.onerror = () => this.end(file, "failed", "The connection was lost. Nothing was stored.");
      request.onabort = () => this.end(file, "cancelled", "cancelled");
      request.send(file.file);
    },
    answered(file, request) {
      if (request.status === 401) { location.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`; return; }
      let answer = {};
      try { answer = JSON.parse(request.responseText); } catch { /* told below */ }
      if (request.status === 201) {
        this.end(file, "done", `${bytes(file.size)}, uploaded`);
        this.$emit("uploaded", { id: answer.id, name: file.name, size: file.size });
      } else {
        this.end(file, "failed", [answer.detail || `The service answered ${request.status}.`, answer.hint].filter(Boolean).join(" "));
      }
    },
    end(file, state, told) { file.state = state; file.told = told; file.request = null; this.next(); },
    cancel(file) {
      if (file.request) file.request.abort(); else this.end(file, "cancelled", "cancelled");
    },
    retry(file) { file.state = "waiting"; file.told = "waiting"; file.sent = 0; this.next(); },
  },
};
