// The mapping table: a row for each tensor, or for each checkpoint tensor that it makes.
const table = { rows: [], seen: [], sort: null, down: false, each: 'tensor', active: 0, view: null };
const COLUMNS = [
  { key: 'tensor', label: 'Tensor', of: (r) => r.t.name, names: true },
  { key: 'type', label: 'Type', of: (r) => r.t.type },
  { key: 'bytes', label: 'Size', of: (r) => r.t.bytes },
  { key: 'target', label: 'Destination', of: (r) => r.target || r.checkpoint, names: true },
  { key: 'storage', label: 'Storage', of: (r) => r.t.storage ?? '' },
  { key: 'role', label: 'Role', of: (r) => r.t.problem ?? r.t.role },
];

function tableRow(t, checkpoint, use, more) {
  const target = use ? useText(use) : '';
  return { t, checkpoint, target, more, text: `${t.name}\n${checkpoint}\n${target}\n${t.reason ?? ''}`, lower: '' };
}
function tensorRows() {
  return TENSORS.map((t) => {
    const names = t.checkpoint.length === 2 && typeof t.checkpoint[0] !== 'string' ? t.checkpoint[0].length * t.checkpoint[1] : t.checkpoint.length;
    const use = t.target ? { name: t.target, shard: null, experts: null, ...(Array.isArray(t.uses[0]) ? {} : t.uses[0]), ...(names > 1 ? { experts: null } : {}) } : null;
    return tableRow(t, t.first, use, names - 1);
  });
}
function checkpointRows() {
  return TENSORS.flatMap((t) => {
    const names = unpackNames(t.checkpoint), uses = new Map();
    for (const use of unpackUses(t.uses)) uses.set(use.checkpoint, [...(uses.get(use.checkpoint) ?? []), use]);
    if (!names.length) return [tableRow(t, '', null, 0)];
    return names.flatMap((one, i) => (uses.get(i) ?? [null]).map((use) => tableRow(t, one, use, 0)));
  });
}
const natural = (value) => value.replace(/\d+/g, (digits) => digits.padStart(9, '0'));

/** The rows in the order of a column; made once for each column, since 60,000 names take a while. */
function sorted(rows, column) {
  rows.orders ??= {};
  if (!rows.orders[column.key]) {
    const keys = rows.map((row) => (column.names ? natural(column.of(row)) : column.of(row)));
    rows.orders[column.key] = rows.map((_, i) => i).sort((a, b) => (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b));
  }
  return rows.orders[column.key];
}

/** What the search box says, as a test of a row; null for a regular expression that is not one. */
function matcher() {
  const wanted = $('search').value;
  $('search-error').textContent = '';
  if (!wanted) return () => true;
  if ($('regex').checked) {
    try {
      const pattern = new RegExp(wanted, 'iu');
      return (row) => pattern.test(row.text);
    } catch (e) {
      $('search-error').textContent = `Not a regular expression: ${show(e.message).replace(/^.*?:\s*(?=[^:]*$)/, '')}`;
      return null;
    }
  }
  const lower = wanted.toLowerCase();
  return (row) => (row.lower ||= row.text.toLowerCase()).includes(lower);
}

function filterTable() {
  const matches = matcher();
  $('search').setAttribute('aria-invalid', String(!matches));
  if (!matches) return;
  const role = $('filter-role').value, type = $('filter-type').value, storage = $('filter-storage').value, problem = $('filter-problem').value;
  const rows = table.rows, order = table.sort ? sorted(rows, table.sort) : null, seen = [];
  for (let i = 0; i < rows.length; i++) {
    const row = rows[order ? order[table.down ? rows.length - 1 - i : i] : i], t = row.t;
    if ((role && t.role !== role) || (type && t.type !== type) || (storage && (t.storage ?? 'none') !== storage)) continue;
    if (problem && (problem === 'none' ? t.problem : problem === 'any' ? !t.problem : t.problem !== problem)) continue;
    if (matches(row)) seen.push(row);
  }
  table.seen = seen;
  table.active = 0;
  const unit = table.each === 'tensor' ? 'tensor' : 'row';
  $('found').textContent = seen.length === rows.length ? many(rows.length, unit) : `${count(seen.length)} of ${many(rows.length, unit)}`;
  $('table').scrollTop = 0;
  $('table').classList.toggle('nothing', !seen.length);
  table.grid.setAttribute('aria-rowcount', seen.length + 1);
  table.view.show(seen.length);
}

function drawRow(i) {
  const row = table.seen[i], t = row.t, state = t.problem ?? t.role;
  const swatch = el('i', { class: 'swatch' });
  swatch.style.background = scheme('type').colours.get(t.type);
  const cell = (cls, ...inside) => el('div', { role: 'gridcell', class: cls }, ...inside);
  return el('div', { role: 'row', id: `row-${i}`, class: `row${i === table.active ? ' active' : ''}${t.problem ? ' problem' : ''}`, 'aria-rowindex': i + 2, 'aria-selected': String(i === table.active), 'data-no': i },
    cell('c-tensor', name(t.name), el('small', {}, `${t.shape.join(` ${TIMES} `)}${t.transform && t.transform !== 'copy' ? `${DOT}${show(t.transform)}` : ''}`)),
    cell('c-type', swatch, show(t.type)),
    cell('c-bytes', size(t.bytes)),
    cell('c-target', row.target || row.checkpoint ? name(row.target || row.checkpoint) : el('span', { class: 'muted' }, show(t.reason ?? '\u2013')),
      row.target || row.more ? el('small', {}, row.target ? name(row.checkpoint) : '', row.more > 0 ? ` + ${count(row.more)} more` : '') : null),
    cell('c-storage', t.storage ?? '\u2013'),
    cell(`c-role ${t.problem ? 'bad' : ''}`, state));
}

function options(select, label, values) {
  select.replaceChildren(el('option', { value: '' }, label), ...values.map(([value, shown]) => el('option', { value }, shown)));
}
function tally(of) {
  const found = new Map();
  for (const t of TENSORS) if (of(t)) found.set(of(t), (found.get(of(t)) ?? 0) + 1);
  return [...found].sort((a, b) => b[1] - a[1]).map(([value, n]) => [value, `${show(value)} (${count(n)})`]);
}

function sortBy(key, down) {
  table.sort = COLUMNS.find((column) => column.key === key) ?? null;
  table.down = down;
  for (const head of table.heads) {
    const mine = head.dataset.key === key;
    head.setAttribute('aria-sort', mine ? (down ? 'descending' : 'ascending') : 'none');
  }
  $('table-sort').value = table.sort ? `${key}${down ? ' down' : ''}` : '';
  filterTable();
}
function chooseRows(each) {
  table.each = each;
  table.all ??= {};
  table.rows = table.all[each] ??= each === 'tensor' ? tensorRows() : checkpointRows();
  $('table-rows').value = each;
  filterTable();
}
function resetTable() {
  $('search').value = '';
  $('regex').checked = false;
  for (const id of ['filter-role', 'filter-type', 'filter-storage', 'filter-problem']) $(id).value = '';
  sortBy(null, false);
}
/** Show one tensor, or those with a kind of problem, in the table. */
function findInTable(tensor, problem = '') {
  resetTable();
  $('search').value = tensor;
  $('filter-problem').value = problem;
  filterTable();
  $('mapping').scrollIntoView();
  table.grid.focus({ preventScroll: true });
}

function activate(i) {
  if (!table.seen.length) return;
  table.active = Math.max(0, Math.min(table.seen.length - 1, i));
  table.view.reveal(table.active);
  table.grid.setAttribute('aria-activedescendant', `row-${table.active}`);
}

function startTable() {
  const host = $('table'), narrow = matchMedia('(max-width: 700px)');
  table.heads = COLUMNS.map((column) => el('div', { role: 'columnheader', class: `c-${column.key}`, 'aria-sort': 'none', 'data-key': column.key },
    el('button', { type: 'button', click: () => sortBy(column.key, table.sort === column ? !table.down : column.key === 'bytes') }, column.label)));
  const body = el('div', { role: 'rowgroup', class: 'rows' });
  table.grid = el('div', { role: 'grid', tabindex: 0, class: 'grid', 'aria-label': 'Mapping of tensors', 'aria-colcount': COLUMNS.length },
    el('div', { role: 'rowgroup', class: 'sticky' }, el('div', { role: 'row', class: 'heads', 'aria-rowindex': 1 }, ...table.heads)), body);
  host.append(table.grid, el('p', { class: 'empty' }, 'Nothing matches. ', el('button', { type: 'button', click: resetTable }, 'Show all')));
  table.view = windowed(host, body, () => (narrow.matches ? 92 : 46), drawRow);
  narrow.addEventListener('change', () => table.view.repaint());

  options($('filter-role'), 'All roles', tally((t) => t.role));
  options($('filter-type'), 'All types', tally((t) => t.type));
  options($('filter-storage'), 'All storage', tally((t) => t.storage ?? 'none'));
  const problems = tally((t) => t.problem);
  options($('filter-problem'), problems.length ? 'All' : 'No problems', problems.length ? [['any', 'With a problem'], ...problems, ['none', 'Without a problem']] : []);
  $('filter-problem').disabled = !problems.length;
  $('table-rows').replaceChildren(el('option', { value: 'tensor' }, 'A row per tensor'), el('option', { value: 'checkpoint' }, 'A row per checkpoint tensor'));
  options($('table-sort'), 'File order', COLUMNS.flatMap(({ key, label }) => [[key, `${label} \u2191`], [`${key} down`, `${label} \u2193`]]));

  for (const id of ['search', 'regex', 'filter-role', 'filter-type', 'filter-storage', 'filter-problem']) $(id).addEventListener('input', filterTable);
  $('table-rows').addEventListener('input', (e) => chooseRows(e.target.value));
  $('table-sort').addEventListener('input', (e) => { const [key, down] = e.target.value.split(' '); sortBy(key || null, Boolean(down)); });
  $('reset').addEventListener('click', resetTable);
  table.grid.addEventListener('keydown', (e) => {
    if (e.target !== table.grid) return;
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: table.view.page, PageUp: -table.view.page, Home: -Infinity, End: Infinity };
    if (e.key in steps) activate(table.active + steps[e.key]);
    else if (e.key === 'Enter' && table.seen.length) openTensor(table.seen[table.active].t);
    else return;
    e.preventDefault();
  });
  body.addEventListener('click', (e) => {
    const row = e.target.closest('.row');
    if (!row || String(getSelection())) return;
    activate(Number(row.dataset.no));
    openTensor(table.seen[table.active].t);
  });
  addEventListener('keydown', (e) => {
    if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) || $('sheet').open) return;
    e.preventDefault();
    $('mapping').scrollIntoView();
    $('search').focus();
  });
  // Paper takes the first rows of what is shown.
  const printed = 500;
  let kept = null;
  addEventListener('beforeprint', () => {
    if (kept) return;
    kept = table.seen;
    table.seen = kept.slice(0, printed);
    table.view.show(table.seen.length);
    table.view.whole(true);
    if (kept.length > printed) body.after(el('p', { class: 'cut' }, `The first ${printed} of ${many(kept.length, 'row')}.`));
  });
  addEventListener('afterprint', () => {
    if (!kept) return;
    table.seen = kept;
    kept = null;
    host.querySelector('.cut')?.remove();
    table.view.whole(false);
    table.view.show(table.seen.length);
  });
  chooseRows('tensor');
}
