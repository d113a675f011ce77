"use strict";
// One page, no library. Each second it asks for a snapshot and shows what has changed since the last: a rate is the
// difference of two counters over the time between, so the server keeps nothing for us. All text goes in as text.

const interval = 1000, points = 120, maxRows = 200, maxEvents = 100;
const $ = (id) => document.getElementById(id);
let last = null, next = 0, paused = false, boot = "";
const history = { read: [], write: [], read50: [], read99: [], write50: [], write99: [] };
let events = [];

function scaled(v, base, units) {
  let i = 0;
  while (v >= base && i < units.length - 1) { v /= base; i++; }
  const text = i === 0 && Number.isInteger(v) ? String(v) : v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2);
  return text + " " + units[i];
}
const bytes = (v) => scaled(v, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const rate = (v) => bytes(v) + "/s";
const count = (v) => scaled(v, 1000, ["", "k", "M", "G", "T"]).trim();
const perSecond = (v) => count(v) + "/s";
function duration(s) {
  if (s === null) return "–";
  return s < 1e-3 ? scaled(s * 1e6, Infinity, ["µs"]) : s < 1 ? scaled(s * 1e3, Infinity, ["ms"]) : scaled(s, Infinity, ["s"]);
}
function age(ms) {
  const s = Math.max(0, Math.floor(ms / 1000)), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  return d ? `${d}d${h % 24}h` : h ? `${h}h${m % 60}m` : m ? `${m}m${s % 60}s` : `${s}s`;
}

// since is what a histogram has that an older one has not.
function since(now, old) {
  const was = new Map(((old || {}).buckets || []).map((b) => [b.from_seconds, b.count]));
  return ((now || {}).buckets || []).map((b) => ({ ...b, count: b.count - (was.get(b.from_seconds) || 0) })).filter((b) => b.count > 0);
}
function quantile(buckets, q) {
  let left = buckets.reduce((n, b) => n + b.count, 0) * q;
  if (left === 0) return null;
  for (const b of buckets) {
    if (left <= b.count) return b.up_to_seconds ? b.from_seconds + (b.up_to_seconds - b.from_seconds) * left / b.count : b.from_seconds;
    left -= b.count;
  }
  return buckets[buckets.length - 1].from_seconds;
}
function merged(histograms) {
  const all = new Map();
  for (const list of histograms) for (const b of list) {
    const a = all.get(b.from_seconds);
    if (a) a.count += b.count; else all.set(b.from_seconds, { ...b });
  }
  return [...all.values()].sort((a, b) => a.from_seconds - b.from_seconds);
}

// rows fills a table's body, reusing what is there: a row that is read out or selected stays.
function rows(body, list) {
  while (body.rows.length > list.length) body.deleteRow(-1);
  list.forEach((cells, i) => {
    const row = body.rows[i] || body.insertRow();
    while (row.cells.length > cells.length) row.deleteCell(-1);
    cells.forEach((c, j) => {
      const cell = row.cells[j] || row.insertCell();
      const { text, cls } = typeof c === "object" ? c : { text: c, cls: "" };
      if (cell.textContent !== String(text)) cell.textContent = text;
      if (cell.className !== cls) cell.className = cls;
    });
  });
}
const n = (text) => ({ text, cls: "n" });
const alarming = (v) => ({ text: count(v), cls: v > 0 ? "n bad" : "n" });
const more = (id, shown, all) => { $(id).textContent = shown < all ? `${shown} of ${all} shown` : all ? "" : "none"; };

function plot(id, lines, format, words) {
  const top = Math.max(...lines.flatMap((l) => l.values.map((v) => v ?? 0)), 0) || 1;
  const svg = $(id), x = (i, len) => 600 - (len - 1 - i) * 600 / (points - 1), y = (v) => 196 - v / top * 188;
  const want = [{ cls: "grid", d: "M0 8H600M0 102H600M0 196H600" }].concat(lines.map((l) => {
    let d = "", pen = "M";
    l.values.forEach((v, i) => {
      if (v === null) { pen = "M"; return; }
      d += pen + x(i, l.values.length).toFixed(1) + " " + y(v).toFixed(1) + (pen === "M" ? "h0" : ""); // h0: a lone point is seen too
      pen = "L";
    });
    return { cls: l.cls, d };
  }));
  want.forEach((p, i) => {
    const path = svg.children[i] || svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
    path.setAttribute("class", p.cls);
    path.setAttribute("d", p.d);
  });
  svg.setAttribute("aria-label", words);
  $(id + "-top").textContent = "top line: " + format(top);
}

function show(s) {
  const now = Date.parse(s.time), t = last ? (now - Date.parse(last.time)) / 1000 : 0;
  const st = s.stats, old = last ? last.stats : st;
  const per = (a, b) => t > 0 ? Math.max(0, a - b) / t : 0;
  const total = (x, ok) => x.commands.filter((c) => !ok || c.status !== "good").reduce((sum, c) => sum + c.count, 0);

  const read = per(st.read_bytes, old.read_bytes), write = per(st.written_bytes, old.written_bytes);
  const ops = Object.keys(st.latency), fresh = (op) => since(st.latency[op], last ? old.latency[op] : st.latency[op]);
  const r = fresh("read"), w = fresh("write");
  const p99 = quantile(merged(ops.map(fresh)), 0.99);
  push({ read, write, read50: quantile(r, 0.5), read99: quantile(r, 0.99), write50: quantile(w, 0.5), write99: quantile(w, 0.99) });

  $("version").textContent = s.version;
  $("read-rate").textContent = rate(read);
  $("write-rate").textContent = rate(write);
  $("iops").textContent = perSecond(per(total(st), total(old)));
  $("p99").textContent = duration(p99);
  $("inflight").textContent = count(st.in_flight);
  $("sessions-now").textContent = count(s.sessions.length);
  $("buffers").textContent = (s.buffers.total_bytes ? Math.round(100 * s.buffers.free_bytes / s.buffers.total_bytes) : 0) + "% of " + bytes(s.buffers.total_bytes);
  $("failed").textContent = count(total(st, true)) + ", " + count(st.aborted);
  $("uptime").textContent = "up " + age(now - Date.parse(s.since));
  state(`${s.portals.length} portal${s.portals.length === 1 ? "" : "s"}` + (s.config.unsaved ? ", configuration not saved" : ""), s.config.trouble);

  plot("throughput", [{ cls: "read", values: history.read }, { cls: "write", values: history.write }], rate,
    `Throughput over the last ${history.read.length} seconds; now read ${rate(read)}, write ${rate(write)}`);
  plot("latency", [{ cls: "read half", values: history.read50 }, { cls: "read", values: history.read99 },
    { cls: "write half", values: history.write50 }, { cls: "write", values: history.write99 }], duration,
    `Latency over the last ${history.read.length} seconds; p99 of all commands now ${duration(p99)}`);
  showUnits(s, per);
  showSessions(s, per, now);
  showRDMA(s, per);
  last = s;
}

function push(sample) {
  for (const k of Object.keys(history)) {
    history[k].push(sample[k]);
    if (history[k].length > points) history[k].shift();
  }
}

function showUnits(s, per) {
  const want = $("filter").value.trim().toLowerCase(), was = new Map();
  for (const t of last ? last.targets : []) for (const l of t.luns) was.set(t.name + " " + l.number, l);
  const list = [];
  let all = 0;
  for (const t of s.targets) for (const l of t.luns.length ? t.luns : [null]) {
    if (want && !(t.name + " " + (l ? l.backstore : "")).toLowerCase().includes(want)) continue;
    if (++all > maxRows) continue;
    const name = t.name + (t.enabled ? "" : " (disabled)");
    if (!l) { list.push([name, "–", "no logical units", "", "", n(t.sessions), "", "", "", ""]); continue; }
    const o = was.get(t.name + " " + l.number) || l;
    list.push([name, l.number, l.backstore, n(bytes(l.size_bytes)), l.readonly ? "ro" : "rw", n(t.sessions),
      n(rate(per(l.read_bytes, o.read_bytes))), n(rate(per(l.written_bytes, o.written_bytes))), n(perSecond(per(l.commands, o.commands))), alarming(l.errors)]);
  }
  rows($("luns"), list);
  more("luns-more", list.length, all);
}

function showSessions(s, per, now) {
  const was = new Map((last ? last.sessions : []).map((x) => [x.id + " " + x.since, x]));
  const list = s.sessions.slice(0, maxRows).map((x) => {
    const o = was.get(x.id + " " + x.since) || x;
    return [x.id, x.initiator, x.remote, x.target || "discovery", x.transport, n(age(now - Date.parse(x.since))),
      n(rate(per(x.read_bytes, o.read_bytes))), n(rate(per(x.written_bytes, o.written_bytes))), n(perSecond(per(x.commands, o.commands))), n(x.in_flight), alarming(x.errors)];
  });
  rows($("sessions"), list);
  more("sessions-more", list.length, s.sessions.length);
}

function showRDMA(s, per) {
  const sum = (x) => {
    const all = {};
    for (const p of x ? x.providers : []) for (const [k, v] of Object.entries(p.counters || {})) all[k] = (all[k] || 0) + v;
    return all;
  };
  const now = sum(s), old = last ? sum(last) : now, gauges = ["qps", "mrs"];
  $("providers").textContent = s.providers.length ? "Providers in use: " + s.providers.map((p) => p.used || p.name).join(", ") : "No RDMA provider is in use.";
  rows($("rdma"), Object.keys(now).sort().map((k) => [
    { qps: "queue pairs", mrs: "keys to memory" }[k] || k.replaceAll("_", " "),
    n(k.endsWith("bytes") ? bytes(now[k]) : count(now[k])), n(gauges.includes(k) ? "" : k.endsWith("bytes") ? rate(per(now[k], old[k] || 0)) : perSecond(per(now[k], old[k] || 0)))]));
}

function showEvents(e) {
  next = e.next;
  if (e.events.length) events = e.events.reverse().concat(events).slice(0, maxEvents);
  rows($("events"), events.map((v) => [new Date(v.time).toLocaleTimeString(),
    { text: v.kind.replaceAll("_", " "), cls: v.level === "info" ? "" : "bad" },
    { text: v.message + [v.target && ` target ${v.target}`, v.initiator && ` initiator ${v.initiator}`, v.lun && ` LUN ${v.lun}`, v.error && `: ${v.error}`].filter(Boolean).join(""), cls: "what" }]));
}

// state tells how things stand. It is read out when it changes, so what changes all the time is not in it.
function state(text, trouble) {
  if (trouble) text += ": " + trouble;
  $("state").classList.toggle("bad", Boolean(trouble));
  if ($("state").textContent !== text) $("state").textContent = text;
}

async function ask(path) {
  const r = await fetch(path, { signal: AbortSignal.timeout(10 * interval), cache: "no-store" });
  if (!r.ok) throw new Error(`${path}: ${r.status}`);
  return r.json();
}

async function turn() {
  try {
    if (!paused && !document.hidden) {
      const s = await ask("api/snapshot");
      if (boot !== s.since) { boot = s.since; last = null; next = 0; events = []; } // another daemon: it counts anew
      show(s);
      showEvents(await ask("api/events?since=" + next));
    }
  } catch (e) {
    last = null; // no rate over a gap
    state("no answer from iserd", "what is shown is old; trying again");
  }
  setTimeout(turn, interval);
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  last = null;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
});
$("filter").addEventListener("input", () => { if (last) showUnits(last, () => 0); });
turn();
