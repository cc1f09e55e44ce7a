// A metric over two axes. A cell shows its best point by the sweep's measure; the arrow keys move
// over the cells, Enter chooses the point.

const NUMBERED = 400; // cells that still have room for their number
let grid = null;
let cursor = null;

function best(rows) {
  const measure = metric(DATA.measure);
  let found = rows[0];
  for (const row of rows) {
    if (Number.isNaN(measure[found]) || measure[row] < measure[found]) found = row;
  }
  return found;
}

function axisNamed(name) {
  return VARIED.find((axis) => axis.name === name) || null;
}

function heldRows() {
  const held = LEADING.filter((axis) => axis.name !== state.heatX && axis.name !== state.heatY);
  return visible.filter((row) => held.every((axis) => {
    const code = state.held[axis.name];
    return code === undefined || axis.codes[row] === code;
  }));
}

function makeGrid() {
  const x = axisNamed(state.heatX);
  const y = axisNamed(state.heatY);
  const rows = heldRows();
  const columns = [...new Set(rows.map((row) => x.codes[row]))].sort((a, b) => a - b);
  const lines = y ? [...new Set(rows.map((row) => y.codes[row]))].sort((a, b) => a - b) : [0];
  const column = new Map(columns.map((code, i) => [code, i]));
  const line = new Map(lines.map((code, i) => [code, i]));
  const cells = lines.map(() => columns.map(() => []));
  for (const row of rows) cells[y ? line.get(y.codes[row]) : 0][column.get(x.codes[row])].push(row);
  return {
    x, y, columns, lines, cells,
    rows: cells.map((some) => some.map((members) => (members.length ? best(members) : -1))),
  };
}

function drawHeatControls() {
  const names = VARIED.map((axis) => [axis.name, axis.name]);
  const change = (key) => (value) => {
    state[key] = value;
    if (state.heatX === state.heatY) state.heatY = "";
    writeHash();
    drawHeatControls();
    redraw("heat-chart");
  };
  const held = LEADING.filter((axis) => axis.name !== state.heatX && axis.name !== state.heatY);
  replaceControls("heat-controls",
    select("Across", names, state.heatX, change("heatX")),
    select("Up", [["", "(one row)"], ...names], state.heatY, change("heatY")),
    select("Colour", metricOptions(), state.heatValue, change("heatValue")),
    held.map((axis) => select(axis.short, [["", "best of all"], ...axis.values.map((v, i) => [i, label(v)])],
      state.held[axis.name] ?? "", (value) => {
        if (value === "") delete state.held[axis.name];
        else state.held[axis.name] = Number(value);
        writeHash();
        redraw("heat-chart");
      })),
  );
}

function metricOptions() {
  return [...METRICS.keys()].map((name) => [name, titleOf(name)]);
}

function drawHeat(element) {
  ready(element);
  if (!VARIED.length) return empty(element, "The sweep has no axis with several values.");
  grid = makeGrid();
  if (!grid.columns.length) return empty(element, "No point is left by the filters.");
  const values = metric(state.heatValue);
  const z = grid.rows.map((some) => some.map((row) => (row < 0 || Number.isNaN(values[row]) ? null : values[row])));
  const flat = z.flat().filter((value) => value !== null);
  const negative = flat.some((value) => value < 0);
  const most = Math.max(...flat.map(Math.abs), 0) || 1;
  const low = flat.length ? flat.reduce((a, b) => Math.min(a, b)) : 0;
  const isError = state.heatValue.startsWith("err_pct/") && !negative;
  const small = grid.columns.length * grid.lines.length <= NUMBERED && grid.columns.length <= 24;
  const room = Math.min(24, Math.max(6, Math.floor(element.clientWidth / 28))); // characters beside a narrow map
  const ticks = (axis, codes) => toldApart(codes.map((code) => label(axis.values[code])), room).map((text) => plain(text));
  const xText = ticks(grid.x, grid.columns);
  const yText = grid.y ? ticks(grid.y, grid.lines) : [""];
  const hover = grid.rows.map((some) => some.map((row) => (row < 0 ? "no point" : hoverText(row, state.heatValue))));
  const trace = {
    type: "heatmap", z, hoverinfo: "text", hovertext: hover, xgap: small ? 2 : 0, ygap: small ? 2 : 0,
    colorscale: negative ? PALE_IS_ZERO : "Cividis", reversescale: !negative,
    zmin: negative ? -most : isError ? 0 : low, zmax: negative ? most : flat.length ? Math.max(...flat) : 1,
    colorbar: { thickness: 14 },
    text: z.map((some) => some.map((value) => (value === null ? "" : Number(value.toPrecision(3)).toString()))),
    texttemplate: small ? "%{text}" : "",
  };
  const shapes = [];
  const annotations = [];
  grid.rows.forEach((some, j) => some.forEach((row, i) => {
    if (row < 0) return;
    if (z[j][i] === null && annotations.length < NUMBERED) {
      const why = DATA.points.status[row] === "finished" ? "–" : "×";
      annotations.push({ x: i, y: j, text: why, showarrow: false, font: { color: colour("--bad"), size: 16 } });
    }
    if (grid.cells[j][i].some((one) => state.chosen.includes(one))) shapes.push(frame(i, j, colour("--ink"), "solid"));
  }));
  if (cursor) shapes.push(frame(cursor[0], cursor[1], colour("--strong"), "dot"));
  const every = Math.ceil(xText.length / 30);
  const yEvery = Math.ceil(yText.length / 30);
  const layout = layoutLook(Math.min(640, 150 + 34 * grid.lines.length), {
    shapes, annotations,
    margin: { l: 60, r: 10, t: 10, b: 60 },
    xaxis: axisLook(plain(grid.x.name), { tickvals: keysEvery(xText, every), ticktext: valuesEvery(xText, every), showgrid: false, zeroline: false }),
    yaxis: axisLook(grid.y ? plain(grid.y.name) : "", { tickvals: keysEvery(yText, yEvery), ticktext: valuesEvery(yText, yEvery), showgrid: false, zeroline: false }),
  });
  plot(element, [trace], layout);
  if (!element.dataset.listens) {
    element.dataset.listens = "yes";
    element.on("plotly_click", (event) => {
      const [point] = event.points;
      const row = grid.rows[point.pointIndex[0]][point.pointIndex[1]];
      if (row >= 0) chooseInHeat(row);
    });
  }
}

const keysEvery = (all, every) => all.map((_, i) => i).filter((i) => i % every === 0);
const valuesEvery = (all, every) => all.filter((_, i) => i % every === 0);

function frame(i, j, color, dash) {
  return { type: "rect", x0: i - 0.5, x1: i + 0.5, y0: j - 0.5, y1: j + 0.5, line: { color, width: 3, dash } };
}

function hoverText(row, name) {
  const status = DATA.points.status[row];
  const value = status === "finished" ? `${titleOf(name)}: ${format(metric(name)[row])}` : status.replaceAll("_", " ");
  return `${plain(DATA.points.name[row], 160)}<br>${plain(value)}`;
}

function chooseInHeat(row) {
  choose(row);
  const chosen = state.chosen.includes(row) ? "chosen" : "not chosen";
  show("heat-said", `${DATA.points.name[row]}: ${titleOf(state.heatValue)} ${format(metric(state.heatValue)[row])}, ${chosen}`);
}

function heatKeys(event) {
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  if (!grid || !grid.columns.length || !(event.key in moves || event.key === "Enter" || event.key === " ")) return;
  event.preventDefault();
  const within = (value, size) => Math.min(Math.max(value, 0), size - 1);
  if (!cursor) cursor = [0, 0];
  else if (moves[event.key]) cursor = [cursor[0] + moves[event.key][0], cursor[1] + moves[event.key][1]];
  cursor = [within(cursor[0], grid.columns.length), within(cursor[1], grid.lines.length)];
  const row = grid.rows[cursor[1]][cursor[0]];
  if (row >= 0 && !moves[event.key]) return chooseInHeat(row);
  const text = row < 0 ? "no point" : `${DATA.points.name[row]}: ${titleOf(state.heatValue)} ${format(metric(state.heatValue)[row])}`;
  show("heat-said", text);
  redraw("heat-chart");
}
