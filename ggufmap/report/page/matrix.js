// Blocks by parts: colour is the ggml type; what other blocks of the kind have is hatched, a rare type has a frame.
const WHOLE = 130; // blocks that are shown without a scroll bar of their own
function matrixCells() {
  const { rows, parts, holes, odd } = DATA.blocks, number = new Map(parts.map((part, no) => [part, no]));
  const cells = rows.map(() => new Array(parts.length).fill(null));
  for (const t of TENSORS) {
    if (t.row < 0) continue;
    const no = number.get(t.part), cell = (cells[t.row][no] ??= { tensors: [], bytes: 0 });
    cell.tensors.push(t);
    cell.bytes += t.bytes;
    if (!cell.largest || t.bytes >= cell.largest.bytes) cell.largest = t;
    cell.problem ??= t.problem;
  }
  for (const [row, part, reason, bad] of holes) cells[row][part] ??= { hole: reason, bad, tensors: [] };
  for (const [row, part, usual] of odd) if (cells[row][part]) cells[row][part].odd = usual;
  return cells;
}

function kindNote(rows) {
  const kinds = new Map();
  for (const [stack, block, draft, kind] of rows) {
    if (!kinds.has(kind)) kinds.set(kind, { stack, draft, runs: [] });
    const runs = kinds.get(kind).runs, last = runs[runs.length - 1];
    if (last && last[1] === block - 1) last[1] = block;
    else runs.push([block, block]);
  }
  const word = ({ stack, draft, runs }) => {
    const shown = runs.slice(0, 6).map(([a, b]) => (a === b ? `${a}` : `${a}\u2013${b}`)).join(', ') + (runs.length > 6 ? ', \u2026' : '');
    return `${stack === 'blk' ? '' : `${stack} `}${shown}${draft ? ' (draft)' : ''}`;
  };
  const list = [...kinds.values()];
  return `${many(rows.length, 'block')} of ${many(list.length, 'kind')}: ${list.slice(0, 8).map(word).join('; ')}${list.length > 8 ? '; \u2026' : ''}.`;
}

function startMatrix() {
  const { rows, parts, holes, odd } = DATA.blocks, host = $('matrix');
  if (!rows.length) {
    $('matrix-note').remove();
    host.replaceWith(el('p', { class: 'empty' }, 'No tensor of the file belongs to a block.'));
    return;
  }
  const cells = matrixCells(), { colours } = scheme('type'), bad = holes.filter((hole) => hole[3]).length;
  const height = rows.length <= 24 ? 22 : rows.length <= 48 ? 17 : 13;
  const found = [bad && `${many(bad, 'tensor')} missing`, holes.length - bad && many(holes.length - bad, 'other hole'), odd.length && `${many(odd.length, 'cell')} of an odd type`].filter(Boolean);
  $('matrix-note').append(show(kindNote(rows)), ' ', found.length ? el('b', { class: bad ? 'bad' : '' }, `${found.join(', ')}.`) : 'No holes, no odd types.');
  host.style.setProperty('--row', `${height}px`);
  host.style.setProperty('--head', `${Math.min(190, 12 + 6.8 * Math.max(...parts.map((part) => show(part).length)))}px`);
  host.style.setProperty('--parts', parts.length);
  host.classList.toggle('tall', rows.length > WHOLE);
  let active = [0, 0];
  const label = (row, part) => {
    const cell = cells[row][part], where = `${rowLabel(row)}, ${show(parts[part])}`;
    if (!cell) return [where, 'none, and none expected'];
    if (cell.hole !== undefined) return [where, `${cell.bad ? 'missing: ' : 'not here: '}${show(cell.hole)}`];
    return [where, `${[...new Set(cell.tensors.map((t) => t.type))].map(show).join(', ')}${DOT}${size(cell.bytes)}${DOT}${many(cell.tensors.length, 'tensor')}`, cell.odd && `odd type; usual here: ${show(cell.odd)}`, cell.problem && `problem: ${cell.problem}`];
  };
  const edge = (row) => row > 0 && (rows[row][3] !== rows[row - 1][3] || rows[row][0] !== rows[row - 1][0]);
  const draw = (row) => {
    const [stack, block, draft] = rows[row];
    const line = el('div', { role: 'row', class: `line${edge(row) ? ' edge' : ''}`, 'aria-rowindex': row + 2 }, el('span', { role: 'rowheader', class: 'label', 'aria-label': rowLabel(row) }, `${stack === 'blk' ? '' : `${stack.split('.')[0]} `}${block}${draft ? ' d' : ''}`));
    parts.forEach((_, part) => {
      const cell = cells[row][part];
      const kind = !cell ? 'none' : cell.hole !== undefined ? (cell.bad ? 'hole missing' : 'hole') : `full${cell.odd ? ' odd' : ''}${cell.problem ? ' problem' : ''}`;
      const span = el('span', { role: 'gridcell', class: `cell ${kind}`, tabindex: row === active[0] && part === active[1] ? 0 : -1, 'aria-label': label(row, part).filter(Boolean).join(', '), 'data-at': `${row} ${part}` });
      if (cell?.largest) span.style.setProperty('--colour', colours.get(cell.largest.type));
      line.append(span);
    });
    return line;
  };
  const head = el('div', { role: 'row', class: 'line parts', 'aria-rowindex': 1 }, el('span', { role: 'columnheader', class: 'label' }, el('span', { class: 'hidden' }, 'block')), ...parts.map((part) => el('span', { role: 'columnheader', class: 'part' }, el('bdi', {}, show(part)))));
  const body = el('div', { role: 'rowgroup', class: 'lines' });
  const grid = el('div', { role: 'grid', class: 'grid', 'aria-label': 'Blocks by parts', 'aria-rowcount': rows.length + 1, 'aria-colcount': parts.length + 1 }, el('div', { role: 'rowgroup', class: 'sticky' }, head), body);
  host.append(grid);
  const view = windowed(host, body, () => height, draw);
  view.show(rows.length);
  const at = (target) => target.dataset?.at?.split(' ').map(Number);
  const move = (row, part) => {
    active = [Math.max(0, Math.min(rows.length - 1, row)), Math.max(0, Math.min(parts.length - 1, part))];
    view.reveal(active[0]);
    body.querySelector(`[data-at="${active.join(' ')}"]`)?.focus();
  };
  const open = ([row, part]) => {
    const cell = cells[row][part];
    if (!cell) return;
    if (cell.tensors.length === 1) return openTensor(cell.tensors[0]);
    const [where, ...facts] = label(row, part);
    openSheet(where, [['Here', facts.filter(Boolean).join('; ')], ['Tensors', cell.tensors.length ? nameList(cell.tensors.map((t) => t.name)) : 'none']]);
  };
  grid.addEventListener('keydown', (e) => {
    const from = at(e.target);
    if (!from) return;
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -parts.length], End: [0, parts.length], PageUp: [-view.page, 0], PageDown: [view.page, 0] };
    if (steps[e.key]) move(from[0] + steps[e.key][0], from[1] + steps[e.key][1]);
    else if (e.key === 'Enter' || e.key === ' ') open(from);
    else return;
    e.preventDefault();
  });
  grid.addEventListener('click', (e) => {
    const where = at(e.target);
    if (!where) return;
    move(...where);
    open(where);
  });
  tooltip(grid, (target) => { const where = at(target); return where ? label(...where) : null; });
  const used = [...scheme('type').bytes.keys()].filter((type) => TENSORS.some((t) => t.row >= 0 && t.type === type));
  legend($('matrix-legend'), [...used.map((type) => [colours.get(type), show(type)]), [null, 'hole: blocks of its kind have it', '', 'hole'], [null, 'missing', '', 'hole missing'], [null, 'odd type', '', 'odd'], [null, 'not expected', '', 'none']]);
}
