// Helpers. Text from the file reaches the page through textContent and setAttribute alone.
const DATA = JSON.parse(document.getElementById('data').textContent);
const $ = (id) => document.getElementById(id);
const MINUS = '\u2212', DOT = ' \u00b7 ', ARROW = '\u2192', TIMES = '\u00d7';

/** An element: el('p', {class: 'note', title: text}, 'text', child, ...). A function stands for an event's listener. */
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** What could hide, reorder or end a text is shown as an escape: controls, bidirectional marks, odd spaces. */
const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
function show(text) {
  return String(text).replace(UNSEEN, (c) => {
    const code = c.codePointAt(0);
    if (code < 256) return '\\x' + code.toString(16).padStart(2, '0');
    return code > 0xffff ? `\\u{${code.toString(16)}}` : '\\u' + code.toString(16).padStart(4, '0');
  });
}

/** A name of the file: isolated, so that its letters do not turn those around it. */
const name = (text, cls = '') => el('bdi', { class: `mono ${cls}` }, show(text));

function size(bytes) {
  for (const unit of ['B', 'kB', 'MB', 'GB', 'TB']) {
    if (bytes < 1000 || unit === 'TB') return (unit === 'B' || bytes >= 100 ? bytes.toFixed(0) : String(+bytes.toPrecision(3))) + ' ' + unit;
    bytes /= 1000;
  }
}
const count = (n) => n.toLocaleString('en-GB');
const many = (n, word) => `${count(n)} ${word}${n === 1 ? '' : 's'}`;
const share = (part, whole) => (whole ? `${+((100 * part) / whole).toPrecision(2)} %` : '');

// ---- the data, unpacked (report/page_runs.py) ----
const TEXT = DATA.texts;
function unpackNames(packed) {
  if (!packed.length || typeof packed[0] === 'string') return packed;
  const [runs, rounds] = packed, names = [];
  for (let i = 0; i < rounds; i++) for (const [before, start, after] of runs) names.push(start === null ? before : before + (start + i) + after);
  return names;
}
function unpackUses(packed) {
  if (packed.length !== 4 || !Array.isArray(packed[0])) return packed;
  const [runs, rounds, shards, experts] = packed, turns = runs.length;
  return unpackNames([runs, rounds]).map((name, i) => {
    const first = experts[i % turns];
    return { name, shard: shards[i % turns], experts: first === null ? null : first + Math.floor(i / turns), checkpoint: i };
  });
}
const text = (key, no) => (no < 0 ? null : TEXT[key][no]);
const TENSORS = DATA.tensors.map((t, no) => ({
  no, name: t[0], type: text('ggml_type', t[1]), shape: t[2], bytes: t[3], role: text('role', t[4]), transform: text('transform', t[5]),
  storage: text('storage', t[6]), problem: text('problem', t[7]), reason: text('reason', t[8]), row: t[9], part: text('part', t[10]),
  checkpoint: t[11], uses: t[12],
}));
for (const t of TENSORS) {
  const use = t.uses.length === 4 && Array.isArray(t.uses[0]) ? { name: unpackNames([t.uses[0], 1])[0] } : t.uses[0];
  const first = t.checkpoint.length && typeof t.checkpoint[0] !== 'string' ? unpackNames([t.checkpoint[0], 1])[0] : t.checkpoint[0];
  t.first = first ?? '';
  t.target = use ? use.name : '';
  t.module = moduleOf(t.target || t.first);
}
const TOTAL = TENSORS.reduce((sum, t) => sum + t.bytes, 0);

/** What vLLM calls the layer: `self_attn`, `mlp.experts`, `embed_tokens`. */
function moduleOf(parameter) {
  if (!parameter) return 'nowhere';
  const words = parameter.split('.'), at = words.findIndex((word) => /^\d+$/.test(word));
  if (at < 0 || at + 1 >= words.length) return words.length > 1 ? words[words.length - 2] : parameter;
  return words[at + 2] === 'experts' || words[at + 2] === 'shared_experts' ? `${words[at + 1]}.${words[at + 2]}` : words[at + 1];
}

// ---- colours: Paul Tol's "bright" and "muted" schemes, which stay apart for the colour-blind ----
const TYPE_COLOURS = {
  Q4_K: '#4477aa', Q6_K: '#66ccee', Q8_0: '#ccbb44', Q5_K: '#228833', Q3_K: '#ee6677', Q2_K: '#aa3377',
  F32: '#bbbbbb', F16: '#8c8c8c', BF16: '#777777', IQ4_XS: '#332288', IQ4_NL: '#44aa99', Q4_0: '#999933', MXFP4: '#882255',
};
const SPARE = ['#cc6677', '#44aa99', '#ddcc77', '#332288', '#999933', '#aa4499', '#117733', '#882255', '#88ccee'];
const WHEEL = ['#4477aa', '#ccbb44', '#66ccee', '#aa3377', '#228833', '#ee6677', '#44aa99', '#332288', '#999933'];
const OTHER = '#9aa0a6', BAD = '#cc3311';
const FIXED = {
  role: { target: '#4477aa', draft: '#ccbb44', skipped: OTHER, unmapped: BAD, mismatched: BAD },
  storage: { packed: '#44aa99', dense: '#4477aa', none: OTHER },
};
const CATEGORY = {
  type: (t) => t.type,
  role: (t) => t.problem ?? t.role,
  storage: (t) => t.storage ?? 'none',
  module: (t) => t.module,
};
const SCHEMES = {};
/** A value of a table of ours; a file may call something `constructor`. */
const own = (values, key) => (values && Object.hasOwn(values, key) ? values[key] : undefined);

/** Category -> colour, biggest first, for one way to colour. Past the ninth module the rest is one category. */
function scheme(by) {
  if (SCHEMES[by]) return SCHEMES[by];
  const bytes = new Map();
  for (const t of TENSORS) bytes.set(CATEGORY[by](t), (bytes.get(CATEGORY[by](t)) ?? 0) + t.bytes);
  const order = [...bytes].sort((a, b) => b[1] - a[1]), colours = new Map(), taken = new Set();
  const spare = by === 'module' ? WHEEL : SPARE;
  for (const [category] of order) if (by === 'type') taken.add(own(TYPE_COLOURS, category));
  const free = spare.filter((colour) => !taken.has(colour));
  for (const [category] of order) {
    const fixed = own(by === 'type' ? TYPE_COLOURS : FIXED[by], category);
    colours.set(category, fixed ?? (category === 'nowhere' ? OTHER : free.shift() ?? OTHER));
  }
  return (SCHEMES[by] = { bytes: new Map(order), colours });
}
function luminance(colour) {
  const part = (at) => { const c = parseInt(colour.slice(at, at + 2), 16) / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
}
const inkOn = (colour) => (luminance(colour) > 0.2 ? '#0b0d10' : '#ffffff');

function legend(list, entries) {
  list.replaceChildren(...entries.map(([colour, label, value, cls]) => {
    const swatch = el('i', { class: `swatch ${cls ?? ''}` });
    if (colour) swatch.style.background = colour;
    return el('li', {}, swatch, label, value ? el('span', { class: 'muted' }, value) : null);
  }));
}

// ---- tooltip: what `content()` gives, at the pointer or at the focused element ----
const tip = $('tip');
function tooltip(host, find) {
  const place = (x, y) => {
    const width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${y + 18 + height > innerHeight ? Math.max(8, y - height - 12) : y + 18}px`;
  };
  const at = (target, x, y) => {
    const lines = find(target);
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(...lines.filter(Boolean).map((line, i) => el(i ? 'span' : 'b', {}, line)));
    place(x, y);
  };
  host.addEventListener('pointermove', (e) => at(e.target, e.clientX, e.clientY));
  host.addEventListener('pointerleave', () => (tip.hidden = true));
  host.addEventListener('focusin', (e) => {
    if (!e.target.matches(':focus-visible')) return;
    const box = e.target.getBoundingClientRect();
    at(e.target, box.left, Math.min(box.bottom, innerHeight) - 14);
  });
  host.addEventListener('focusout', () => (tip.hidden = true));
  host.addEventListener('keydown', (e) => { if (e.key === 'Escape') tip.hidden = true; });
}
addEventListener('scroll', () => (tip.hidden = true), { passive: true });

// ---- windowing: of many rows of one height only those in sight are on the page ----
function windowed(scroller, body, height, draw) {
  let total = 0, from = -1, to = -1, all = false;
  const paint = (force) => {
    const h = height(), top = Math.max(0, scroller.scrollTop - body.offsetTop);
    const first = all ? 0 : Math.max(0, Math.floor(top / h) - 6);
    const last = all ? total : Math.min(total, Math.ceil((top + scroller.clientHeight) / h) + 6);
    if (!force && first === from && last === to) return;
    [from, to] = [first, last];
    body.style.height = `${total * h}px`;
    const rows = [];
    for (let i = first; i < last; i++) {
      const row = draw(i);
      row.style.top = `${i * h}px`;
      rows.push(row);
    }
    body.replaceChildren(...rows);
  };
  scroller.addEventListener('scroll', () => paint(false), { passive: true });
  new ResizeObserver(() => paint(true)).observe(scroller);
  return {
    show(n) { total = n; paint(true); },
    repaint() { paint(true); },
    /** Put row `i` in sight. */
    reveal(i) {
      const h = height(), top = body.offsetTop + i * h, head = body.offsetTop;
      if (top - head < scroller.scrollTop) scroller.scrollTop = top - head;
      else if (top + h > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + h - scroller.clientHeight;
      paint(true);
    },
    /** For paper: all rows, or back. */
    whole(yes) { all = yes; paint(true); },
    get page() { return Math.max(1, Math.floor((scroller.clientHeight - body.offsetTop) / height()) - 1); },
  };
}

// ---- a sheet with all that is known of one tensor ----
const LISTED = 300;
function nameList(names) {
  const list = el('ul', { class: 'names' }, ...names.slice(0, LISTED).map((x) => el('li', {}, name(x))));
  if (names.length > LISTED) list.append(el('li', { class: 'muted' }, `and ${count(names.length - LISTED)} more`));
  return list;
}
function openSheet(title, entries, actions = []) {
  const sheet = $('sheet'), list = el('dl', { class: 'pairs' });
  for (const [label, value] of entries) if (value !== null && value !== '' && value !== undefined) list.append(el('dt', {}, label), el('dd', {}, value));
  const close = el('button', { type: 'button', click: () => sheet.close() }, 'Close');
  sheet.replaceChildren(el('h2', { id: 'sheet-title' }, name(title)), el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Facts' }, list), el('div', { class: 'actions' }, ...actions, close));
  sheet.showModal();
  tip.hidden = true;
}
$('sheet').addEventListener('click', (e) => { if (e.target === $('sheet')) $('sheet').close(); });

function useText(use) {
  const where = [use.shard === null ? '' : `shard ${use.shard}`, use.experts === null ? '' : `expert ${use.experts}`].filter(Boolean);
  return use.name + (where.length ? ` [${where.join(', ')}]` : '');
}
function openTensor(t) {
  const checkpoint = unpackNames(t.checkpoint), uses = unpackUses(t.uses);
  openSheet(t.name, [
    [t.problem ? `Problem: ${t.problem}` : 'Reason', t.reason && el('span', { class: t.problem ? 'bad' : '' }, show(t.reason))],
    ['ggml type', t.type], ['Shape', t.shape.join(` ${TIMES} `)], ['Bytes in the file', `${size(t.bytes)} (${count(t.bytes)})`],
    ['Role', t.role], ['Storage', t.storage], ['Transform', t.transform && show(t.transform)],
    [`Checkpoint tensors (${count(checkpoint.length)})`, nameList(checkpoint)],
    [`vLLM parameters (${count(uses.length)})`, DATA.traced ? nameList(uses.map(useText)) : 'not traced'],
  ], [el('button', { type: 'button', click: () => { $('sheet').close(); findInTable(t.name); } }, 'Show in the table')]);
}
