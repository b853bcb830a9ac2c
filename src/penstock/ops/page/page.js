"use strict";
// The page: what /events tells, shown. Words come from the service; only ages and charts are made here.

const STALE_AFTER_S = 5;
const RETRY_MS = 2000;
const GAP_S = 35;
const SERIES = ["behind_s", "lag_bytes", "rate", "fill", "retained_bytes", "log_bytes", "failing"];
const CHARTS = {
  capture: [
    ["behind_s", "seconds behind", seconds],
    ["lag_bytes", "received and not delivered", bytes],
    ["rate", "records accepted a second", plain],
    ["fill", "fullest of queue, window, bytes", percent],
    ["retained_bytes", "WAL that the slot keeps", bytes],
  ],
  shapes: [
    ["behind_s", "seconds behind, the last shape", seconds],
    ["lag_bytes", "received and not in every table", bytes],
    ["rate", "changes read a second", plain],
    ["log_bytes", "log of changes", bytes],
    ["failing", "shapes that fail", plain],
    ["retained_bytes", "WAL that the slot keeps", bytes],
  ],
};
const COLUMNS = ["state", "rows", "position", "lag", "flushed", "due"];
const LABELS = { state: "", rows: "rows written since it leads", position: "at", lag: "", flushed: "last flush", due: "next flush" };

const known = { facts: {}, order: [], shapes: {}, troubles: [], warnings: [] };
const rows = new Map();
const charts = new Map();
let history = [];
let heardAt = performance.now();
let ahead = 0; // the service's clock against ours, in seconds

const byId = (id) => document.getElementById(id);

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ---- numbers

function plain(value) {
  return value >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

function percent(value) {
  return `${plain(value)} %`;
}

function bytes(value) {
  for (const [unit, each] of [["TB", 2 ** 40], ["GB", 2 ** 30], ["MB", 2 ** 20], ["kB", 2 ** 10]]) {
    if (value >= each) return `${Number((value / each).toPrecision(3))} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

function seconds(value) {
  if (value > 0 && value < 1) return `${Math.round(value * 1000)} ms`;
  if (value >= 7200) return `${Number((value / 3600).toPrecision(3))} h`;
  return value >= 120 ? `${Number((value / 60).toPrecision(3))} min` : `${Number(value.toPrecision(3))} s`;
}

function unitOf(highest, format) {
  if (format === bytes) return 1024 ** Math.max(0, Math.floor(Math.log(highest) / Math.log(1024)));
  if (format !== seconds || highest < 120) return 1;
  return highest < 7200 ? 60 : 3600;
}

function ceiling(highest, format) {
  // 1, 2, 5, 10 … of whatever the axis is written in.
  const base = unitOf(highest, format);
  const size = 10 ** Math.floor(Math.log10(highest / base));
  return base * size * [1, 2, 5, 10].find((step) => step * size * base >= highest * 0.9999);
}

function now() {
  return Date.now() / 1000 + ahead;
}

// ---- what is wrong, and facts

function trouble(kind, [what, advice]) {
  const box = element("div", kind);
  box.append(element("p", "what", what));
  if (advice) box.append(element("p", "do", advice));
  return box;
}

function showTrouble() {
  const boxes = [
    ...known.troubles.map((each) => trouble("trouble", each)),
    ...known.warnings.map((each) => trouble("warning", each)),
  ];
  const well = known.phase === "standby" ? "No. This process stands by, ready to lead." : "No.";
  byId("trouble").replaceChildren(...(boxes.length ? boxes : [element("p", "well", well)]));
}

function showHead() {
  write(byId("service"), known.service);
  write(byId("headline"), known.headline);
  document.body.classList.toggle("ready", known.ready);
  document.body.classList.toggle("unready", !known.ready);
  document.title = `${known.ready ? "" : "NOT READY · "}${known.phase} · penstock ${known.service}`;
}

function showFacts() {
  const list = byId("facts");
  const labels = [...list.querySelectorAll("dt")].map((node) => node.textContent);
  if (labels.join() !== known.order.join()) {
    list.replaceChildren(...known.order.flatMap((label) => [element("dt", "", label), element("dd")]));
  }
  [...list.querySelectorAll("dd")].forEach((node, place) => write(node, known.facts[known.order[place]] ?? ""));
}

// ---- shapes

function cellText(column, value) {
  if (column === "flushed") return value === null ? "–" : age(now() - value);
  if (column !== "due") return value;
  if (value === null) return "–";
  const left = Math.round(value - now());
  return left > 0 ? `in ${seconds(left)}` : "due";
}

function age(passed) {
  const whole = Math.max(0, Math.round(passed));
  return whole < 120 ? `${whole} s ago` : `${seconds(Math.round(whole / 60) * 60)} ago`;
}

function newRow(name) {
  const line = element("tr");
  const head = element("th", "", name);
  head.scope = "row";
  const cells = Object.fromEntries(
    COLUMNS.map((column) => {
      const cell = element("td", column === "rows" ? "number" : column);
      if (LABELS[column]) cell.dataset.label = LABELS[column];
      return [column, cell];
    }),
  );
  line.append(head, ...Object.values(cells));
  const note = element("tr", "note");
  const sentence = element("td");
  sentence.colSpan = COLUMNS.length + 1;
  note.append(sentence);
  return { line, cells, note, sentence };
}

function showRow(name) {
  const shape = known.shapes[name];
  const row = rows.get(name);
  for (const column of COLUMNS) write(row.cells[column], cellText(column, shape[column]));
  row.line.classList.toggle("failing", shape.failing);
  row.line.classList.toggle("has-note", Boolean(shape.note));
  row.note.classList.toggle("waits", !shape.failing);
  write(row.sentence, shape.note);
}

function arrange() {
  // Those that fail first: who opens the page looks for them.
  const wanted = byId("find-text").value.trim().toLowerCase();
  const names = Object.keys(known.shapes).filter((name) => name.toLowerCase().includes(wanted));
  names.sort((one, other) => known.shapes[other].failing - known.shapes[one].failing);
  const lines = names.flatMap((name) => {
    const row = rows.get(name);
    return known.shapes[name].note ? [row.line, row.note] : [row.line];
  });
  const body = byId("rows");
  if (lines.length !== body.children.length || lines.some((line, place) => body.children[place] !== line)) {
    body.replaceChildren(...lines);
  }
  const all = Object.keys(known.shapes).length;
  const failing = Object.values(known.shapes).filter((shape) => shape.failing).length;
  write(byId("found"), `${wanted ? `${names.length} of ` : ""}${all} shapes${failing ? `, ${failing} failing` : ""}`);
  byId("shapes").hidden = !all;
}

function showShapes(names) {
  for (const name of [...rows.keys()].filter((each) => !(each in known.shapes))) rows.delete(name);
  for (const name of names) {
    if (!(name in known.shapes)) continue;
    if (!rows.has(name)) rows.set(name, newRow(name));
    showRow(name);
  }
  arrange();
}

// ---- charts

const BOX = { width: 340, height: 120, left: 46, right: 6, top: 8, bottom: 18 };
const INNER = { width: BOX.width - BOX.left - BOX.right, height: BOX.height - BOX.top - BOX.bottom };

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function newChart([key, title, format]) {
  const figure = element("figure");
  figure.tabIndex = 0;
  figure.dataset.series = key;
  const caption = element("figcaption");
  const reading = element("output");
  caption.append(element("span", "", title), reading);
  const picture = svg("svg", { viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: "img" });
  figure.append(caption, picture);
  const chart = { figure, reading, picture, title, format, place: SERIES.indexOf(key), points: [], cursor: null };
  figure.addEventListener("keydown", (event) => step(chart, event));
  figure.addEventListener("blur", () => point(chart, null));
  picture.addEventListener("pointermove", (event) => follow(chart, event));
  picture.addEventListener("pointerleave", () => point(chart, null));
  return chart;
}

function step(chart, event) {
  const last = chart.points.length - 1;
  if (event.key === "Escape") return point(chart, null);
  const at = chart.cursor ?? last;
  const places = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last };
  if (!(event.key in places) || last < 0) return undefined;
  // These would scroll the page, too.
  event.preventDefault();
  return point(chart, Math.min(last, Math.max(0, places[event.key])));
}

function follow(chart, event) {
  const box = chart.picture.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * BOX.width;
  const distances = chart.points.map((each) => Math.abs(each.x - x));
  point(chart, distances.length ? distances.indexOf(Math.min(...distances)) : null);
}

function point(chart, cursor) {
  chart.cursor = cursor;
  chart.picture.querySelector(".cursor")?.remove();
  const at = cursor === null ? chart.points.at(-1) : chart.points[cursor];
  const value = at === undefined || at.value === null ? "–" : chart.format(at.value);
  if (cursor !== null && at) {
    const line = { class: "cursor", x1: at.x, x2: at.x, y1: BOX.top, y2: BOX.top + INNER.height };
    chart.picture.append(svg("line", line));
  }
  const time = at && cursor !== null ? ` at ${new Date(at.at * 1000).toLocaleTimeString()}` : "";
  write(chart.reading, `${value}${time}`);
  chart.picture.setAttribute("aria-label", `${chart.title}: ${value}${time}`);
}

function runsOf(points) {
  // A line has no business where nothing was measured.
  const runs = [];
  let before = null;
  for (const each of points) {
    if (each.value === null) before = null;
    else {
      if (before === null || each.at - before.at > GAP_S) runs.push([]);
      runs.at(-1).push(each);
      before = each;
    }
  }
  return runs;
}

function draw(chart) {
  const span = Number(byId("span").value);
  const end = now();
  const start = end - span;
  const seen = history.filter(([at]) => at >= start);
  const highest = Math.max(0, ...seen.map(([, values]) => values[chart.place] ?? 0));
  const top = ceiling(Math.max(highest, chart.format === bytes ? 1024 : 1), chart.format);
  chart.points = seen.map(([at, values]) => ({
    at,
    value: values[chart.place],
    x: BOX.left + ((at - start) / span) * INNER.width,
    y: BOX.top + INNER.height * (1 - (values[chart.place] ?? 0) / top),
  }));
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const y = BOX.top + INNER.height * (1 - share);
    parts.push(svg("line", { class: "grid", x1: BOX.left, x2: BOX.width - BOX.right, y1: y, y2: y }));
    parts.push(svg("text", { x: BOX.left - 4, y: y + 4, "text-anchor": "end" }, chart.format(top * share)));
  }
  for (const [share, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    const text = share === 1 ? "now" : `−${(span * (1 - share)) / 60} min`;
    const x = BOX.left + INNER.width * share;
    parts.push(svg("text", { x, y: BOX.height - 4, "text-anchor": anchor }, text));
  }
  for (const run of runsOf(chart.points)) {
    const path = run.map(({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" L");
    const floor = BOX.top + INNER.height;
    const area = `M${run[0].x.toFixed(1)},${floor} L${path} L${run.at(-1).x.toFixed(1)},${floor} Z`;
    parts.push(svg("path", { class: "area", d: area }));
    parts.push(svg("path", { class: "line", d: run.length > 1 ? `M${path}` : `M${path} h0.1` }));
  }
  chart.picture.replaceChildren(...parts);
  point(chart, chart.cursor === null ? null : Math.min(chart.cursor, chart.points.length - 1));
}

function showCharts() {
  const wanted = CHARTS[known.service] ?? [];
  if (!charts.size) {
    for (const each of wanted) charts.set(each[0], newChart(each));
    byId("charts").replaceChildren(...[...charts.values()].map((chart) => chart.figure));
  }
  charts.forEach(draw);
}

// ---- what the service tells

function merge(target, news) {
  for (const [key, value] of Object.entries(news)) {
    if (value === null) delete target[key];
    else target[key] = value;
  }
}

function heard(at) {
  heardAt = performance.now();
  ahead = at - Date.now() / 1000;
  byId("stale").hidden = true;
  document.body.classList.remove("stale-now");
}

function takeAll(told) {
  heard(told.at);
  Object.assign(known, told);
  history = told.history;
  byId("logout").hidden = !told.login;
  showHead();
  showTrouble();
  showFacts();
  showShapes(Object.keys(known.shapes));
  showCharts();
}

function takeNews({ at, facts = {}, shapes = {}, point: newest, ...rest }) {
  heard(at);
  Object.assign(known, rest);
  merge(known.facts, facts);
  for (const [name, cells] of Object.entries(shapes)) {
    if (cells === null) delete known.shapes[name];
    else known.shapes[name] = { ...known.shapes[name], ...cells };
  }
  if ("headline" in rest || "service" in rest) showHead();
  if ("troubles" in rest || "warnings" in rest || "phase" in rest) showTrouble();
  showFacts();
  if (Object.keys(shapes).length) showShapes(Object.keys(shapes));
  if (newest) {
    history = [...history.filter(([when]) => when < newest[0] && when > newest[0] - 3700), newest];
    showCharts();
  }
}

function listen() {
  const source = new EventSource("/events");
  source.addEventListener("all", (event) => takeAll(JSON.parse(event.data)));
  source.addEventListener("news", (event) => takeNews(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    source.close();
    window.setTimeout(again, RETRY_MS);
  });
}

async function again() {
  try {
    const answer = await fetch("/page.js", { method: "HEAD", cache: "no-store" });
    if (answer.status === 401) return window.location.reload();
  } catch {
    // Nobody answers; listening says so again.
  }
  return listen();
}

function tick() {
  const silent = (performance.now() - heardAt) / 1000;
  if (silent > STALE_AFTER_S) {
    const since = new Date(Date.now() - silent * 1000).toLocaleTimeString();
    write(byId("stale"), `This process has not answered since ${since}. What you see is of then.`);
    byId("stale").hidden = false;
    document.body.classList.add("stale-now");
  }
  for (const [name, row] of rows) {
    for (const column of ["flushed", "due"]) write(row.cells[column], cellText(column, known.shapes[name][column]));
  }
}

byId("find-text").addEventListener("input", arrange);
byId("span").addEventListener("change", showCharts);
window.setInterval(tick, 1000);
listen();
