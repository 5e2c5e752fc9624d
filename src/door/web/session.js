// The session that is looked into: what it fetches, its plan, its last traced step.
const asked = new URLSearchParams(location.search);
let chosen = asked.has("session") ? { task: asked.get("master"), id: asked.get("session") } : null;
let isByHand = chosen !== null;
let events, isTraced = false;
const nothing = text => make("span", { class: "dim" }, text);
function choose(task, id, byHand) {
  isByHand ||= byHand;
  if (chosen?.id === id) return;
  chosen = { task, id };
  follow();
}
function showCurves(told) {
  if (told.session !== chosen?.id) return;
  at("ended").textContent = told.failure ?? (told.is_over ? "It has ended." : "");
  if (told.failure) return;
  if (told.lately.length && !isTraced) showLately(told.lately);
  at("curves").replaceChildren(...told.curves.map(curve), ...(told.curves.length ? [] : [nothing("It has not fetched any number yet.")]));
}
function curve({ name, points, last }) {
  const all = [...points, last].filter(([, value]) => value !== null);
  const steps = all.map(([step]) => step), values = all.map(([, value]) => value);
  const [first, end] = [Math.min(...steps), Math.max(...steps)], [least, most] = [Math.min(...values), Math.max(...values)];
  // As in `meshtf top`: where most values are far below the greatest, half of the curve would be the lower edge.
  const median = [...values].sort((a, b) => a - b)[values.length >> 1], isLog = least >= 0 && median > 0 && most >= 100 * median;
  const floor = isLog ? Math.min(...values.filter(value => value > 0)) : least, scale = isLog ? value => Math.log(Math.max(value, floor)) : value => value;
  const [low, high] = [scale(least), scale(most)];
  const x = step => 60 + 330 * (step - first) / Math.max(end - first, 1), y = value => 110 - 95 * (scale(value) - low) / (high - low || 1);
  const path = all.map(([step, value], i) => (i ? "L" : "M") + x(step).toFixed(1) + " " + y(value).toFixed(1)).join("");
  const text = (x, y, side, value) => draw("text", { x, y, class: "small " + side }, value);
  const short = value => number(value, 3);
  const svg = draw("svg", { viewBox: "0 0 400 130", class: "curve", role: "img", "aria-label": name + " by step" });
  svg.append(draw("line", { x1: 60, y1: 110, x2: 390, y2: 110 }), draw("line", { x1: 60, y1: 15, x2: 60, y2: 110 }));
  if (all.length) svg.append(draw("path", { d: path }), text(55, 18, "end", short(most)), text(55, 113, "end", short(floor)),
    text(60, 126, "begin", "step " + first), text(390, 126, "end", String(end)));
  if (isLog) svg.append(text(55, 65.5, "end", short(Math.exp((low + high) / 2))));
  const value = make("b", {}, number(last[1])), caption = make("figcaption", {}, name + " ", value);
  if (isLog) caption.append(make("span", { class: "dim" }, "  (logarithmic)"));
  return make("figure", { "data-curve": name }, caption, svg);
}
// The column of each box: one behind the last of those that it takes values from, back edges of loops aside; one that takes none
// stands right before the first that takes its values.
function columns(count, arrows) {
  const next = Array.from({ length: count }, () => []);
  for (const [from, to] of arrows) next[from].push(to);
  const state = new Array(count).fill(0), order = [], back = new Set();
  for (let root = 0; root < count; root++) {
    const stack = state[root] ? [] : [[root, 0]];
    if (stack.length) state[root] = 1;
    while (stack.length) {
      const top = stack[stack.length - 1], [one, i] = top;
      if (i === next[one].length) { state[one] = 2; order.push(one); stack.pop(); continue; }
      top[1]++;
      const to = next[one][i];
      if (state[to] === 1) back.add(one + " " + to);
      else if (state[to] === 0) { state[to] = 1; stack.push([to, 0]); }
    }
  }
  const column = new Array(count).fill(0);
  for (const one of order.reverse()) for (const to of next[one]) if (!back.has(one + " " + to)) column[to] = Math.max(column[to], column[one] + 1);
  const takes = new Set(arrows.map(([, to]) => to));
  for (let one = 0; one < count; one++)
    if (!takes.has(one) && next[one].length) column[one] = Math.max(0, Math.min(...next[one].map(to => column[to])) - 1);
  return column;
}
// Constants tell little of a plan, and there are many.
function withoutConstants({ boxes, arrows }) {
  const places = new Map(), kept = boxes.filter(([, op], i) => op !== "Const" && places.set(i, places.size));
  const between = arrows.filter(([from, to]) => places.has(from) && places.has(to));
  return { boxes: kept, arrows: between.map(([from, to, size]) => [places.get(from), places.get(to), size]),
    constants: boxes.reduce((sum, [, op, nodes]) => sum + (op === "Const" ? nodes : 0), 0) };
}
function showPlan({ picture }) {
  if (!picture) return at("plan").replaceChildren(nothing("No plan of its graph is kept, or it is too large to draw."));
  const { devices } = picture, { boxes, arrows, constants } = withoutConstants(picture), column = columns(boxes.length, arrows);
  const wide = 118, high = 40, place = [], rows = devices.map(() => 1), filled = new Map();
  boxes.forEach(([, , , device], i) => {
    const key = device + " " + column[i], row = filled.get(key) ?? 0;
    filled.set(key, row + 1);
    rows[device] = Math.max(rows[device], row + 1);
    place.push([device, row]);
  });
  const tops = [];
  let height = 0;
  for (const count of rows) { tops.push(height); height += count * high + 34; }
  const width = Math.max(700, (Math.max(0, ...column) + 1) * wide + 20);
  const x = i => 14 + column[i] * wide, y = i => tops[place[i][0]] + 28 + place[i][1] * high;
  const parts = devices.map((device, d) => draw("g", {},
    draw("rect", { class: "lane", style: hue(device), x: 0, y: tops[d], width, height: rows[d] * high + 28, rx: 6 }),
    draw("text", { class: "begin", x: 10, y: tops[d] + 17 }, device)));
  const labels = [];
  for (const [from, to, size] of arrows) {
    const crosses = boxes[from][3] !== boxes[to][3];
    const [x1, y1, x2, y2] = [x(from) + 96, y(from) + 14, x(to), y(to) + 14], bend = Math.max(20, Math.abs(x2 - x1) / 2);
    parts.push(draw("path", { class: crosses ? "arrow crosses" : "arrow", d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` }));
    if (crosses && size) labels.push(draw("text", { class: "small halo", x: (x1 + x2) / 2, y: (y1 + y2) / 2 }, bytes(size)));
  }
  boxes.forEach(([name, op, nodes, device], i) => {
    const label = nodes > 1 ? nodes + " × " + (op || "several ops") : op;
    const short = text => text.length > 14 ? "…" + text.slice(-13) : text;
    parts.push(draw("g", {}, draw("rect", { class: "of-device", style: hue(devices[device]), x: x(i), y: y(i), width: 96, height: 28, rx: 4 }),
      draw("text", { x: x(i) + 48, y: y(i) + 12, style: "font-size:11px" }, short(name)),
      draw("text", { class: "small", x: x(i) + 48, y: y(i) + 24, style: "font-size:9px" }, short(label)),
      draw("title", {}, name + "\n" + (op || "several ops") + (nodes > 1 ? ", " + nodes + " nodes" : "") + "\n" + devices[device])));
  });
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, style: `width:${width}px;max-width:none`, role: "img", "aria-label": "The plan" }, ...parts, ...labels);
  const more = [[constants, "constants"], [picture.more_nodes, "nodes"], [picture.more_arrows, "arrows"]].filter(([count]) => count)
    .map(([count, what]) => count + " " + what).join(", ");
  at("plan").replaceChildren(svg, nothing(more && more + " are not drawn"));
}
const micros = us => us < 1000 ? us.toFixed(0) + " µs" : us < 1e6 ? digits(us / 1000) + " ms" : digits(us / 1e6) + " s";
// When each device was done with its part of the last steps: what lies between two of these is one step of the device.
function showLately(lately) {
  const devices = [...new Set(lately.map(([device]) => device))].sort(), lanes = devices.map(device => lately.filter(one => one[0] === device).slice(-9));
  const first = Math.max(...lanes.map(lane => lane[0][2])), last = Math.min(...lanes.map(lane => lane[lane.length - 1][2]));
  const bars = lanes.flatMap((lane, d) => lane.slice(1).map(([, step, ago], i) => [d, "step " + step, String(step), first - lane[i][2], lane[i][2] - ago]));
  showBars({ devices, bars, ways: [], took_us: first - last }, "the last steps: each bar ends when the device was done with its part of that step");
}
function showStep({ number, picture }) {
  const more = picture.more_bars ? ", the " + picture.bars.length + " longest of " + (picture.bars.length + picture.more_bars) + " nodes" : "";
  isTraced = true;
  showBars(picture, "step " + number + ", traced, took " + micros(picture.took_us) + more);
}
function showBars(picture, words) {
  const { took_us, devices, bars, ways } = picture, scale = 700 / Math.max(took_us, 1e-9), high = 34;
  const x = us => (150 + us * scale).toFixed(1), y = device => 10 + device * high;
  const parts = devices.flatMap((device, d) => [draw("rect", { class: "lane", style: hue(device), x: 150, y: y(d), width: 700, height: 26, rx: 4 }),
    draw("text", { class: "end", x: 142, y: y(d) + 17 }, device)]);
  for (const [device, name, op, start, took] of bars) {
    const width = Math.max(1, took * scale), bar = draw("g", {}, draw("rect", { class: "of-device", style: hue(devices[device]), x: x(start), y: y(device) + 2,
      width: width.toFixed(1), height: 22, "stroke-width": .5 }), draw("title", {}, name + "\n" + op + "\n" + micros(took)));
    if (width > 7 * op.length) bar.append(draw("text", { x: x(start + took / 2), y: y(device) + 17, style: "font-size:10px" }, op));
    parts.push(bar);
  }
  for (const [from, sent, to, received] of ways)
    parts.push(draw("line", { class: "arrow crosses", x1: x(sent), y1: y(from) + 13, x2: x(received), y2: y(to) + 13 }));
  const bottom = 10 + devices.length * high;
  for (const part of [0, .25, .5, .75, 1]) parts.push(draw("text", { class: "small", x: x(part * took_us), y: bottom + 10 }, micros(part * took_us)));
  const svg = draw("svg", { viewBox: `0 0 870 ${bottom + 16}`, style: "max-width:72em;min-width:44em", role: "img", "aria-label": "The traced step" }, ...parts);
  at("step").replaceChildren(nothing(words), make("div", { class: "scroll" }, svg));
}
function follow() {
  events?.close();
  const query = new URLSearchParams(location.search);
  query.delete("session"); query.delete("master");
  at("session").hidden = chosen === null;
  if (chosen) {
    query.set("session", chosen.id); query.set("master", chosen.task);
    at("title").textContent = "Session " + chosen.id;
    at("ended").textContent = "";
    at("curves").replaceChildren();
    for (const id of ["plan", "step"]) at(id).replaceChildren(nothing("none"));
    isTraced = false;
    if (isByHand) history.replaceState(null, "", "?" + query);
  }
  events = new EventSource("events" + (query.size ? "?" + query : ""));
  events.onmessage = event => { at("state").textContent = ""; show(JSON.parse(event.data)); };
  events.addEventListener("curves", event => showCurves(JSON.parse(event.data)));
  events.addEventListener("plan", event => showPlan(JSON.parse(event.data)));
  events.addEventListener("step", event => showStep(JSON.parse(event.data)));
  events.onerror = () => { at("state").textContent = "the node does not answer; trying again"; };
}
follow();
