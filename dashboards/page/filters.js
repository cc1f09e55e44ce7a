// Which points are shown.

const AXES = DATA.axes.map((axis) => ({ ...axis, codes: unpack(axis.codes) }));
const COUNT = DATA.points.count;
const METRICS = new Map(Object.entries(DATA.metrics).map(([name, p]) => [name, unpack(p)]));
const NO_VALUES = new Float64Array(COUNT).fill(NaN);
const EQUALS = unpack(DATA.points.equals);
const BLOCKS = unpack(DATA.points.blocks);
const VARIED = AXES.filter((axis) => axis.values.length > 1);
const LEADING = VARIED.filter((axis) => DATA.leading.includes(axis.name)); // the others move with one of these
const MOST_CHIPS = 16;
const RANK = rankOfRows();

let visible = [];

function rankOfRows() {
  const rank = new Float64Array(COUNT).fill(Infinity);
  DATA.ranked.forEach((group, place) => group.forEach((row) => { rank[row] = place + 1; }));
  for (let row = 0; row < COUNT; row += 1) if (EQUALS[row] >= 0) rank[row] = rank[EQUALS[row]];
  return rank;
}

// A metric of every point; NaN where there is none.
function metric(name) {
  return METRICS.get(name) ?? NO_VALUES;
}

// What was measured; undefined where nothing was.
function truthValue(truth, name) {
  return truth ? own(truth.metrics, name) : undefined;
}

function truthKey(row) {
  return Array.isArray(DATA.truth_of) ? DATA.truth_of[row] : DATA.truth_of;
}

function truthsOf(rows) {
  return [...new Set(rows.map(truthKey))].filter((key) => key);
}

function valueOf(axis, row) {
  return axis.values[axis.codes[row]];
}

function keeps(row) {
  for (const axis of VARIED) {
    const wanted = state.only[axis.name];
    if (wanted && wanted.length && !wanted.includes(axis.codes[row])) return false;
    const range = state.range[axis.name];
    if (range) {
      const value = valueOf(axis, row);
      if (range[0] !== null && value < range[0]) return false;
      if (range[1] !== null && value > range[1]) return false;
    }
  }
  if (state.status && DATA.points.status[row] !== state.status) return false;
  if (state.most !== null && !(metric(DATA.measure)[row] <= state.most)) return false;
  if (state.find) {
    const words = `${DATA.points.name[row]} ${DATA.points.id[row]} ${DATA.points.status[row]}`.toLowerCase();
    if (!state.find.toLowerCase().split(/\s+/).every((word) => words.includes(word))) return false;
  }
  return true;
}

function applyFilters() {
  visible = [];
  for (let row = 0; row < COUNT; row += 1) if (keeps(row)) visible.push(row);
  show("shown", `${visible.length} of ${COUNT} points`);
}

function filtersChanged() {
  applyFilters();
  writeHash();
  drawTable();
  redraw("heat-chart", "curve-chart", "parallel-chart");
}

function drawFilters() {
  const fields = VARIED.map((axis) => make("fieldset", {}, make("legend", {}, axis.name), filterField(axis)));
  const statuses = [...new Set(DATA.points.status)].sort();
  if (statuses.length > 1) {
    const options = [["", "any"], ...statuses.map((status) => [status, status.replaceAll("_", " ")])];
    fields.push(select("Status", options, state.status, (value) => { state.status = value; filtersChanged(); }));
  }
  if (METRICS.has(DATA.measure)) {
    fields.push(make("label", {}, `${titleOf(DATA.measure)} at most`, numberInput(state.most, "any", (value) => {
      state.most = value;
      filtersChanged();
    })));
  }
  fields.push(make("label", {}, "Find by name or id", make("input", {
    type: "search", id: "find", value: state.find,
    oninput: (event) => { state.find = event.target.value; filtersChanged(); },
  })));
  byId("filter-fields").replaceChildren(...fields);
}

function filterField(axis) {
  if (axis.values.length <= MOST_CHIPS) return chips(axis);
  if (axis.numeric) return rangeField(axis);
  const list = make("select", { multiple: true, size: 6, "aria-label": axis.name, onchange: (event) => {
    setOnly(axis, [...event.target.selectedOptions].map((option) => Number(option.value)));
  } });
  axis.values.forEach((value, code) => {
    list.append(make("option", { value: code, selected: (state.only[axis.name] || []).includes(code) }, label(value)));
  });
  return list;
}

function chips(axis) {
  const buttons = axis.values.map((value, code) => make("button", {
    type: "button",
    title: label(value),
    "aria-pressed": String((state.only[axis.name] || []).includes(code)),
    onclick: (event) => {
      const now = new Set(state.only[axis.name] || []);
      if (!now.delete(code)) now.add(code);
      event.currentTarget.setAttribute("aria-pressed", String(now.has(code)));
      setOnly(axis, [...now].sort((a, b) => a - b));
    },
  }, label(value)));
  return make("div", { class: "chips", "data-axis": axis.name }, buttons);
}

function setOnly(axis, codes) {
  if (codes.length) state.only[axis.name] = codes;
  else delete state.only[axis.name];
  filtersChanged();
}

function rangeField(axis) {
  const given = state.range[axis.name] || [null, null];
  const change = (end) => (value) => {
    const now = [...(state.range[axis.name] || [null, null])];
    now[end] = value;
    if (now[0] === null && now[1] === null) delete state.range[axis.name];
    else state.range[axis.name] = now;
    filtersChanged();
  };
  return make("div", { class: "chips", "data-axis": axis.name },
    numberInput(given[0], `from ${label(axis.values[0])}`, change(0)),
    numberInput(given[1], `to ${label(axis.values.at(-1))}`, change(1)));
}

function numberInput(value, placeholder, change) {
  return make("input", {
    type: "number", step: "any", placeholder, "aria-label": placeholder, value,
    oninput: (event) => change(event.target.value === "" ? null : Number(event.target.value)),
  });
}
