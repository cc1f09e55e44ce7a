// One simulation step by step.

const LOOKS = { queued: ["#8A8F96", "solid"], prefill: ["#0072B2", "solid"], decode: ["#009E73", "solid"], preempted: ["#D55E00", "solid"] };
const STEP = unpack(DATA.step);
const STEPS = Object.fromEntries(Object.entries(DATA.steps).map(([name, packed]) => [name, unpack(packed)]));
const REASON = unpack(DATA.reason);
const SPANS = Object.fromEntries(Object.entries(DATA.spans).map(([name, packed]) => [name, unpack(packed)]));
const ENTRIES = Object.fromEntries(Object.entries(DATA.entries).map(([name, packed]) => [name, unpack(packed)]));
const EVENTS = ["preempted", "finished"].map((name) => [name, unpack(DATA[name].step), unpack(DATA[name].request)]);
const SECONDS = Float64Array.from(STEPS.start_ns, (ns) => ns / 1e9);

function drawOver(element) {
  ready(element);
  if (!STEP.length) return empty(element, "No step runs in this part of the simulation.");
  const line = (name, values, axis, color, more) => ({
    type: "scatter", mode: "lines", name, x: SECONDS, y: values, yaxis: axis, line: { color, width: 1.6, shape: "hv" }, ...more,
  });
  const [blue, orange, green] = COLOURS[isDark() ? "dark" : "light"];
  const used = Float64Array.from(STEPS.free_after_schedule, (free) => DATA.usable_blocks - free);
  const traces = [
    line("running", STEPS.running_after_schedule, "y", blue),
    line("waiting", STEPS.waiting_after_schedule, "y", orange),
    line("KV blocks in use", used, "y2", blue),
    line("prefill tokens", STEPS.prefill_tokens, "y3", blue),
    line("decode tokens", STEPS.num_decodes, "y3", green, { line: { color: green, width: 1.6, shape: "hv", dash: "dot" } }),
  ];
  const preempting = [...STEP.keys()].filter((i) => STEPS.num_preempted[i] > 0);
  traces.push({
    type: "scatter", mode: "markers", name: "preemption", x: preempting.map((i) => SECONDS[i]), y: preempting.map((i) => used[i]), yaxis: "y2",
    marker: { color: orange, symbol: "x", size: 7 }, hovertext: preempting.map((i) => `step ${STEP[i]}: ${STEPS.num_preempted[i]} preempted`), hoverinfo: "text",
  });
  DATA.kinds.forEach((kind, code) => traces.push(spanLines(kind, code)));
  const requests = new Set(SPANS.request).size;
  const layout = layoutLook(620 + Math.min(500, 8 * requests), {
    yaxis: axisLook("requests", { domain: [0.82, 1], rangemode: "tozero" }),
    yaxis2: axisLook("KV blocks", { domain: [0.62, 0.79], rangemode: "tozero" }),
    yaxis3: axisLook("tokens of a batch", { domain: [0.43, 0.59], rangemode: "tozero" }),
    yaxis4: axisLook("request", { domain: [0, 0.4], autorange: "reversed" }),
    xaxis: axisLook("time (s)", { anchor: "y4" }),
    legend: { orientation: "h", y: -0.07, yanchor: "top", x: 0 }, hovermode: "closest",
    shapes: [marker()],
  });
  plot(element, traces, layout);
  if (!element.dataset.listens) {
    element.dataset.listens = "yes";
    element.on("plotly_click", (event) => goTo(stepAt(event.points[0].x)));
  }
}

function spanLines(kind, code) {
  const [x, y, text] = [[], [], []];
  SPANS.kind.forEach((k, i) => {
    if (k !== code) return;
    const [begin, end] = [SPANS.begin_ns[i] / 1e9, SPANS.end_ns[i] / 1e9];
    const what = SPANS.first_step[i] < 0 ? "" : `, ${SPANS.tokens[i]} tokens, steps ${SPANS.first_step[i]} to ${SPANS.last_step[i]}`;
    const said = `request ${plain(DATA.ids[SPANS.request[i]])}: ${kind} ${format(end - begin)} s${what}`;
    x.push(begin, end, null);
    y.push(SPANS.request[i], SPANS.request[i], null);
    text.push(said, said, "");
  });
  return {
    type: "scatter", mode: "lines", name: kind, x, y, yaxis: "y4", hoverinfo: "text", hovertext: text,
    line: { color: LOOKS[kind][0], width: 3 }, connectgaps: false,
  };
}

function marker() {
  const at = SECONDS[state.step] ?? 0;
  return { type: "line", yref: "paper", y0: 0, y1: 1, x0: at, x1: at, line: { color: colour("--ink"), width: 1.5, dash: "dot" } };
}

function stepAt(second) {
  let [low, high] = [0, STEP.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (SECONDS[middle] <= second) low = middle;
    else high = middle - 1;
  }
  return low;
}

function within(index) {
  return Math.min(Math.max(Math.trunc(index) || 0, 0), Math.max(STEP.length - 1, 0));
}

function goTo(index) {
  state.step = within(index);
  writeHash();
  drawStep();
  if (byId("over-chart").data) Plotly.relayout("over-chart", { shapes: [marker()] });
}

function drawStep() {
  if (!STEP.length) return;
  const i = state.step;
  const input = byId("step-number");
  if (Number(input.value) !== STEP[i]) input.value = STEP[i];
  const list = EVENTS.map(([name, steps, requests]) => {
    const some = [...steps.keys()].filter((k) => steps[k] === STEP[i]).map((k) => DATA.ids[requests[k]]);
    return some.length ? `${name}: ${some.join(", ")}` : null;
  });
  const held = REASON[i] >= 0 ? `the first in the queue is held up by: ${DATA.reasons[REASON[i]]}` : "nobody waits";
  const said = [
    `Step ${STEP[i]} at ${format(SECONDS[i])} s, ${format((STEPS.end_ns[i] - STEPS.start_ns[i]) / 1e6)} ms: ` +
      `${STEPS.num_tokens[i]} tokens, ${STEPS.num_admitted[i]} admitted, ${STEPS.running_after_schedule[i]} of at most ${DATA.max_num_seqs} running, ` +
      `${STEPS.waiting_after_schedule[i]} waiting, ${STEPS.free_after_schedule[i]} of ${DATA.usable_blocks} blocks free; ${held}`,
    ...list,
  ];
  show("step-said", said.filter((one) => one).join("; "));
  const rows = [];
  for (let k = firstEntry(STEP[i]); k < ENTRIES.step.length && ENTRIES.step[k] === STEP[i]; k += 1) {
    const decode = ENTRIES.tokens[k] === 1;
    rows.push(make("tr", {}, make("td", { class: "text" }, DATA.ids[ENTRIES.request[k]]), make("td", { class: "text" }, decode ? "decode" : "prefill"),
      make("td", {}, ENTRIES.tokens[k]), make("td", {}, ENTRIES.computed[k]), make("td", {}, ENTRIES.blocks[k])));
  }
  const head = ["request", "runs", "tokens", "computed before", "new blocks"].map((text, n) => make("th", { class: n < 2 ? "text" : "", scope: "col" }, text));
  byId("step-table").replaceChildren(make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows));
}

function firstEntry(step) {
  let [low, high] = [0, ENTRIES.step.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ENTRIES.step[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

function drawStepControls() {
  if (!STEP.length) return;
  const input = make("input", { type: "number", id: "step-number", min: STEP[0], max: STEP.at(-1), value: STEP[state.step],
    oninput: (event) => event.target.value !== "" && goTo(Number(event.target.value) - STEP[0]) });
  const move = (text, by) => make("button", { type: "button", onclick: () => goTo(state.step + by) }, text);
  const nextWith = (test) => () => {
    for (let i = state.step + 1; i < STEP.length; i += 1) if (test(i)) return goTo(i);
    return null;
  };
  byId("step-controls").replaceChildren(
    move("◀ step", -1), make("label", {}, "Step", input), move("step ▶", 1),
    make("button", { type: "button", onclick: nextWith((i) => STEPS.num_preempted[i] > 0) }, "Next preemption"),
    make("button", { type: "button", onclick: nextWith((i) => STEPS.num_admitted[i] > 0) }, "Next admission"));
}

function drawWaits() {
  byId("waits").hidden = !DATA.waits.length;
  const head = make("tr", {}, ["request", "waited"].map((text) => make("th", { class: "text", scope: "col" }, text)));
  const rows = DATA.waits.map(([id, said]) => make("tr", {}, make("td", { class: "text" }, id), make("td", { class: "long" }, said)));
  byId("wait-table").replaceChildren(make("thead", {}, head), make("tbody", {}, rows));
}

function drawAll() {
  applyTheme();
  state.step = within(state.step);
  drawStepControls();
  drawStep();
  redraw();
}

function main() {
  startState({ theme: "", step: 0 });
  show("name", DATA.name);
  show("verdict", DATA.verdict);
  show("facts", DATA.left_out);
  addChart("over-chart", drawOver);
  drawWaits();
  drawAll();
  byId("print").addEventListener("click", () => window.print());
  byId("theme").addEventListener("click", () => { state.theme = isDark() ? "light" : "dark"; writeHash(); drawAll(); });
  byId("reset").addEventListener("click", () => { Object.assign(state, structuredClone(defaults)); writeHash(); drawAll(); });
  window.addEventListener("hashchange", () => {
    if (location.hash.slice(1) === ownHash) return;
    readHash();
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  for (const [name, on] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(name, () => {
      printing = on;
      applyTheme();
      for (const chart of charts.values()) chart.due = true;
      drawDue(on);
    });
  }
  performance.mark("servesweep-ready");
}

main();
