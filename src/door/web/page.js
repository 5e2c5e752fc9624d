"use strict";
// The mesh: its picture and its tables. session.js has the session that is looked into.
const SVG = "http://www.w3.org/2000/svg";
const MAX_POINTS = 60, MAX_ROWS = 40;
const at = id => document.getElementById(id);
function withAttributes(one, attributes) {
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  return one;
}
function make(name, attributes, ...children) {
  const one = withAttributes(document.createElement(name), attributes);
  one.append(...children);
  return one;
}
function draw(name, attributes, ...children) {
  const one = withAttributes(document.createElementNS(SVG, name), attributes);
  one.append(...children);
  return one;
}
const digits = value => value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
function bytes(count) {
  if (count === null || count === undefined) return "?";
  if (count < 1000) return Math.round(count) + " B";
  for (const unit of ["kB", "MB", "GB"]) { count /= 1000; if (count < 1000) return digits(count) + " " + unit; }
  return digits(count / 1000) + " TB";
}
const rate = count => count >= 100 ? count.toFixed(0) : count.toFixed(1);
const percent = share => Math.round(100 * share) + " %";
// A number that a step fetched; null is one that JSON does not have.
function number(value, digits = 5) {
  if (value === null) return "NaN";
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) < 1e-4 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
}
function time(ms) {
  const s = Math.floor(ms / 1000);
  return s < 60 ? s + " s" : s < 3600 ? Math.floor(s / 60) + " min" : s < 86400 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
}
// Each device has a colour of its own, the same wherever it is shown.
const hues = new Map();
function hue(device) {
  if (!hues.has(device)) hues.set(device, Math.round(210 + hues.size * 137.5) % 360);
  return "--h:" + hues.get(device);
}
function table(id, header, rows) {
  const head = make("tr", {}, ...header.map(text => make("th", {}, text)));
  const shown = rows.slice(0, MAX_ROWS).map(({ cells, attributes, press }) => {
    const row = make("tr", attributes ?? {}, ...cells.map((cell, i) => make("td", { class: "number", "data-label": header[i] }, cell)));
    if (press) row.addEventListener("click", press);
    return row;
  });
  const rest = rows.length > MAX_ROWS ? [make("tr", {}, make("td", { class: "dim whole" }, "and " + (rows.length - MAX_ROWS) + " more"))] : [];
  const none = rows.length ? [] : [make("tr", {}, make("td", { class: "dim whole" }, "none"))];
  at(id).replaceChildren(head, ...shown, ...rest, ...none);
}
// The last minute of what changes: the steps a second of each session, how busy each device is, and its memory.
const histories = new Map();
function spark(id, value, scale = 0) {
  const points = histories.get(id)?.points ?? [];
  points.push(value);
  if (points.length > MAX_POINTS) points.shift();
  histories.set(id, { points, round });
  const most = Math.max(...points, scale, 1e-9);
  const path = points.map((p, i) => (i ? "L" : "M") + (i * 100 / (MAX_POINTS - 1)).toFixed(1) + " " + (19 - 18 * p / most).toFixed(1));
  return draw("svg", { viewBox: "0 0 100 20", preserveAspectRatio: "none", class: "spark" }, draw("path", { d: path.join("") }));
}
// Histories of this round are kept; the others are of what is gone.
let round = 0;
function forget() {
  for (const [id, history] of histories) if (history.round !== round) histories.delete(id);
  round++;
}
function link(from, to, link) {
  const traffic = link.sent + link.received;
  const [[x1, y1], [x2, y2]] = link.received > link.sent ? [to, from] : [from, to];
  const ends = { x1, y1, x2, y2 };
  const lines = [draw("line", { ...ends, stroke: link.up ? "var(--line)" : "var(--hot)", "stroke-width": 2 })];
  // What members say to stay in touch is no traffic to look at.
  if (link.up && traffic > 5000) lines.push(draw("line", { ...ends, class: "flow", "stroke-width": (Math.log10(traffic) - 1.5).toFixed(1) }));
  const label = [link.up ? null : "broken", traffic > 0 ? bytes(traffic) + "/s" : null,
    link.round_trip_us === null ? null : digits(link.round_trip_us / 1000) + " ms"].filter(Boolean).join(", ");
  const [x, y, wide] = [(x1 + x2) / 2, (y1 + y2) / 2, 5.6 * label.length];
  const back = draw("rect", { x: x - wide / 2, y: y - 8, width: wide, height: 16, fill: "var(--card)" });
  return [lines, draw("g", {}, back, draw("text", { x, y: y + 4, class: "small" }, label))];
}
function picture(mesh) {
  const nodes = mesh.nodes, places = new Map(), lines = [], labels = [], circles = [];
  const size = Math.max(9, Math.min(30, 420 / nodes.length)), start = nodes.length === 2 ? Math.PI : -Math.PI / 2;
  nodes.forEach((node, i) => {
    const angle = 2 * Math.PI * i / nodes.length + start, wide = nodes.length > 1 ? 1 : 0;
    places.set(node.task, [320 + wide * 240 * Math.cos(angle), 190 + wide * 145 * Math.sin(angle)]);
  });
  const seen = new Set();
  for (const node of nodes) for (const one of node.links ?? []) {
    const pair = [node.task, one.to].sort().join(" "), to = places.get(one.to);
    if (!to || seen.has(pair)) continue;
    seen.add(pair);
    const [drawn, label] = link(places.get(node.task), to, one);
    lines.push(...drawn);
    // Of a large mesh, only links that carry something are labelled.
    if (nodes.length <= 8 || one.sent + one.received > 1e5) labels.push(label);
  }
  for (const node of nodes) {
    const [x, y] = places.get(node.task), busy = Math.max(0, ...(node.devices ?? []).map(device => device.busy));
    const round = 2 * Math.PI * (size - 4), style = hue(node.task + " " + (node.devices?.[0]?.name ?? ""));
    circles.push(draw("circle", { cx: x, cy: y, r: size, fill: "var(--card)", stroke: node.silent ? "var(--hot)" : "var(--line)", "stroke-width": 2 }));
    circles.push(draw("circle", { cx: x, cy: y, r: size - 4, fill: "none", style: style + ";stroke:hsl(var(--h) 55% var(--edge))", "stroke-width": 6,
      "stroke-dasharray": (round * busy).toFixed(1) + " " + round.toFixed(1), transform: "rotate(-90 " + x + " " + y + ")" }));
    if (size > 20) circles.push(draw("text", { x, y: y + 4 }, node.silent ? "?" : percent(busy)));
    labels.push(draw("text", { x, y: y + size + 16, class: "halo" }, node.task));
  }
  const heights = [...places.values()].map(([, y]) => y), top = Math.min(...heights) - size - 15;
  at("picture").setAttribute("viewBox", "0 " + top + " 640 " + (Math.max(...heights) + size + 28 - top));
  at("picture").replaceChildren(...lines, ...circles, ...labels);
}
function deviceRow(node, device) {
  const style = hue(node.task + " " + device.name);
  const bar = make("span", { class: "bar", style, title: percent(device.busy) }, make("i", { style: "width:" + percent(device.busy).replace(" ", "") }));
  return { cells: [make("span", {}, make("span", { class: "dot", style }), node.task), device.name + " " + device.backend,
    make("span", {}, bar, " " + percent(device.busy) + " ", spark("busy " + node.task + " " + device.name, device.busy, 1)),
    make("span", {}, bytes(device.used) + " ", spark("memory " + node.task + " " + device.name, device.used ?? 0)), bytes(device.free), time(node.up_ms)] };
}
// Of a run, the values have the names of its file.
const valuesOf = run => run.values.map(([name, isHeldOut, value]) => titled(name, isHeldOut) + " " + number(value)).join(", ");
function sessionRow(node, one, runs) {
  const run = runs.find(run => run.session === one.id && run.values.length);
  const isChosen = chosen?.id === one.id;
  const name = make("button", { type: "button", "aria-pressed": isChosen }, one.id);
  return { attributes: { class: isChosen ? "choice chosen" : "choice" }, press: () => choose(node.task, one.id, true),
    cells: [node.task, name, rate(one.rate), spark("session " + one.id, one.rate), run ? valuesOf(run) : one.fetched.map(([name, value]) => name + " " + number(value)).join("  "),
      String(one.steps), time(one.age_ms)] };
}
const titled = (name, isHeldOut) => name + (isHeldOut ? " (held out)" : "");
function runRow(run) {
  const isChosen = chosen?.id === run.session, share = Math.min(1, run.step / Math.max(run.of, 1));
  const name = make("button", { type: "button", "aria-pressed": isChosen }, run.title);
  const bar = make("span", { class: "bar progress", title: percent(share) }, make("i", { style: "width:" + (100 * share).toFixed(1) + "%" }));
  return { attributes: { class: isChosen ? "choice chosen" : "choice" }, press: () => choose(run.master, run.session, true),
    cells: [run.master, name, make("span", {}, bar, " " + run.step + " of " + run.of), run.left_ms === null || run.end ? "-" : time(run.left_ms),
      valuesOf(run), time(run.age_ms) + " ago", run.end ?? "running"] };
}
// The run of the session that is looked into.
function showTitle(runs) {
  const run = runs.find(run => run.session === chosen?.id);
  if (!run) return;
  const left = run.left_ms === null || run.end ? "" : ", " + time(run.left_ms) + " left";
  at("title").textContent = run.title + ": step " + run.step + " of " + run.of + left + (run.end ? ", " + run.end : "") + " (session " + run.session + ")";
}
const clock = ms => new Date(ms).toISOString().slice(11, 19) + "Z";
function show(mesh) {
  const told = mesh.nodes.filter(node => !node.silent), sessions = told.flatMap(node => node.sessions.items.map(one => [node, one]));
  const steps = sessions.reduce((sum, [, one]) => sum + one.rate, 0), total = told.reduce((sum, node) => sum + node.sessions.total, 0);
  const many = (count, what) => count + " " + what + (count === 1 ? "" : "s");
  at("mesh").textContent = mesh.mesh ?? "";
  at("sum").textContent = many(mesh.nodes.length, "task") + ", " + many(total, "session") + ", " + rate(steps) + " steps/s";
  at("apart").textContent = mesh.apart.map(([a, b]) => a + " cannot reach " + b).concat(
    mesh.nodes.filter(node => node.silent).map(node => node.task + ": " + node.silent),
    mesh.beyond).join("; ");
  told.forEach(node => node.devices.forEach(device => hue(node.task + " " + device.name)));
  picture(mesh);
  table("devices", ["TASK", "DEVICE", "BUSY, 1 MIN", "MEMORY, 1 MIN", "FREE", "UP"], told.flatMap(node => node.devices.map(device => deviceRow(node, device))));
  const here = new Set(sessions.map(([, one]) => one.id));
  // The fastest first: it is looked into until somebody chooses another.
  sessions.sort(([, a], [, b]) => b.rate - a.rate);
  if (!isByHand && !here.has(chosen?.id) && sessions.length) choose(sessions[0][0].task, sessions[0][1].id, false);
  else if (chosen === null && mesh.runs.length) choose(mesh.runs[0].master, mesh.runs[0].session, false);
  table("runs", ["MASTER", "GRAPH", "STEP", "LEFT", "VALUES", "BEGAN", "END"], mesh.runs.map(runRow));
  showTitle(mesh.runs);
  table("sessions", ["MASTER", "SESSION", "STEPS/S", "1 MIN", "FETCHED", "STEPS", "AGE"], sessions.map(([node, one]) => sessionRow(node, one, mesh.runs)));
  const variables = told.flatMap(node => node.variables.items.map(one => [node, one])).sort(([, a], [, b]) => (b.bytes ?? 0) - (a.bytes ?? 0));
  table("variables", ["TASK", "NAME", "KIND", "SIZE", "VERSION"], variables.map(([node, one]) =>
    ({ cells: [node.task, one.name, one.kind, bytes(one.bytes), one.version === null ? "-" : String(one.version)] })));
  table("events", ["TIME", "TASK", "EVENT"], mesh.events.map(([ms, task, , text]) => ({ cells: [clock(ms), task, text] })));
  forget();
}
