// What is read from top to bottom: head, problems, summary, serve, memory, details.
const WORDS = {
  missing: ['missing', 'a vLLM parameter, or part of one, that no tensor fills'],
  unmapped: ['unmapped', 'a tensor with no destination'],
  mismatched: ['mismatched', 'a tensor that conflicts with its destination'],
  inferred: ['inferred', 'the family has no rows of its own'],
};

function startHead() {
  document.title = `${show(DATA.name)} - ggufmap report`;
  $('name').append(name(DATA.name, 'plain'));
  const state = DATA.ok ? (DATA.traced ? ['ok', '\u2713 fits'] : ['ok', '\u2713 fits by the rows']) : ['bad', '\u2717 does not fit'];
  $('verdict').className = `pill ${state[0]}`;
  $('verdict').textContent = state[1];
  $('sentence').textContent = DATA.verdict;
  for (const [label, value] of DATA.facts) $('facts').append(el('div', {}, el('dt', {}, label), el('dd', {}, el('bdi', {}, show(value)))));
}

function problemCard({ kind, names, cause, remedy }) {
  const [word, meaning] = WORDS[kind];
  const card = el('article', { class: 'card problem' },
    el('h3', {}, el('span', { class: 'pill bad' }, `\u2717 ${word}`), ' ', names.length === 1 ? name(names[0]) : names.length ? many(names.length, kind === 'missing' ? 'parameter' : 'tensor') : '', ' ', el('small', {}, meaning)),
    el('dl', { class: 'pairs' }, el('dt', {}, 'Cause'), el('dd', {}, show(cause)), el('dt', {}, 'Remedy'), el('dd', {}, show(remedy))));
  if (names.length > 1) {
    const more = el('details', {}, el('summary', {}, `All ${count(names.length)} names`));
    more.addEventListener('toggle', () => { if (more.children.length === 1) more.append(nameList(names)); });
    card.append(more);
  }
  if (kind === 'unmapped' || kind === 'mismatched') card.append(el('button', { type: 'button', click: () => findInTable('', kind) }, 'Show in the table'));
  return card;
}
function startProblems() {
  const list = $('problem-list');
  list.append(...DATA.problems.map(problemCard));
  if (!DATA.problems.length) list.append(el('p', { class: 'card calm' }, el('span', { class: 'pill ok' }, '\u2713 none'), ' Every tensor has a destination', DATA.traced ? ', and every vLLM parameter is filled.' : '. vLLM was not asked: run the audit without --offline, with vLLM installed, for the proof.'));
  for (const { code, message, remedy } of DATA.warnings) {
    list.append(el('article', { class: 'card warn' }, el('h3', {}, el('span', { class: 'pill warn' }, `! ${code}`), ' ', show(message)), remedy ? el('p', { class: 'muted' }, show(remedy)) : null));
  }
}

function startSummary() {
  const s = DATA.summary, meaning = {
    mapped: 'go to the target', draft: 'go to the draft module', skipped: 'carry no parameter', unmapped: 'have no destination',
    missing: 'parameters without a tensor', mismatched: 'conflict with their place', phantom: 'expected, not in the file',
  };
  const tile = (label, value, note, bad) => el('div', { class: bad ? 'count bad' : 'count' }, el('dt', {}, label), el('dd', {}, el('b', {}, value), el('small', {}, note)));
  for (const [key, note] of Object.entries(meaning)) $('counts').append(tile(key, count(s[key]), note, s[key] && WORDS[key]));
  const whole = s.parameters !== null;
  $('counts').append(tile('parameters', whole ? count(s.parameters_complete) : '\u2013', whole ? `of ${count(s.parameters)} filled, every element once` : 'not traced', whole && s.parameters_complete < s.parameters));
}

/** A text to copy. Without the clipboard's interface the old command is tried; failing that the text stays selected. */
function copyBox(value, label) {
  const code = el('code', {}, value.split('\n').map(show).join('\n')), said = el('span', { role: 'status', class: 'muted' });
  const copy = async () => {
    let done = false;
    try {
      await navigator.clipboard.writeText(value);
      done = true;
    } catch {
      const raw = el('textarea', { class: 'hidden', readonly: true, 'aria-hidden': 'true' });
      raw.value = value;
      box.append(raw);
      raw.select();
      try { done = document.execCommand('copy'); } catch { /* said below */ }
      raw.remove();
      button.focus();
      if (!done) getSelection().selectAllChildren(code);
    }
    said.textContent = done ? 'Copied' : 'Selected: press Ctrl+C';
    setTimeout(() => (said.textContent = ''), 4000);
  };
  const button = el('button', { type: 'button', class: 'primary', click: copy }, 'Copy');
  const box = el('div', { class: 'card copy' }, el('pre', { tabindex: '0', role: 'region', 'aria-label': label }, code), el('div', { class: 'actions' }, said, button));
  return box;
}
function startServe() {
  $('serve-box').append(DATA.serve ? copyBox(DATA.serve, 'Command that serves the file') : el('p', { class: 'card calm' }, DATA.ok ? 'No command: the file has to be downloaded first.' : 'No command: a file with problems is not served. The remedies are above.'));
}

function memoryRow(rank, largest) {
  const total = (rank.target ?? 0) + (rank.draft ?? 0), bar = el('div', { class: 'track', 'aria-hidden': 'true' });
  for (const [key, bytes] of [['target', rank.target], ['draft', rank.draft]]) {
    if (!bytes) continue;
    const part = el('i', { class: key });
    part.style.width = `${(100 * bytes) / largest}%`;
    bar.append(part);
  }
  const edges = rank.problem !== null ? el('span', { class: 'pill bad' }, '\u2717 not possible')
    : rank.cut ? el('span', { class: 'pill warn' }, '! cuts block edges') : el('span', { class: 'pill ok' }, '\u2713 legal');
  const note = rank.problem !== null ? show(rank.problem) : rank.cut ? `${many(rank.cut, 'tensor')} would end inside a block and are dequantised` : rank.packed ? `${size(rank.packed)} packed` : '';
  return el('tr', { class: rank.tensor_parallel === DATA.ranks ? 'traced' : '' }, el('th', { scope: 'row' }, `TP ${rank.tensor_parallel}`), el('td', { class: 'number' }, rank.problem !== null ? '\u2013' : size(total)),
    el('td', { class: 'bars' }, bar), el('td', { class: 'number split' }, rank.target === null ? '' : size(rank.target)), el('td', { class: 'number split' }, rank.draft === null ? '' : size(rank.draft)), el('td', { class: 'edges' }, edges, ' ', el('small', {}, note)));
}
function startMemory() {
  const box = $('memory-box'), ranks = DATA.memory;
  if (!ranks.length) {
    box.classList.add('calm');
    box.append('Not known: vLLM was not asked. Run the audit without --offline; --tp-sizes 1,2,4,8,16 asks for each size.');
    return;
  }
  const drafts = ranks.some((rank) => rank.draft !== null);
  const largest = Math.max(...ranks.map((rank) => (rank.target ?? 0) + (rank.draft ?? 0)), 1);
  const heads = ['Ranks', 'Per GPU', '', 'Target', 'Draft', 'Block edges'].map((label) => (label ? el('th', { scope: 'col', class: /^(Tar|Dra)/.test(label) ? 'number split' : label === 'Per GPU' ? 'number' : '' }, label) : el('td', { class: 'bars' })));
  box.append(el('div', { class: drafts ? 'wide-scroll' : 'wide-scroll alone', tabindex: '0', role: 'region', 'aria-label': 'Sizes of tensor parallelism' }, el('table', {}, el('thead', {}, el('tr', {}, ...heads)), el('tbody', {}, ...ranks.map((rank) => memoryRow(rank, largest))))));
  const shared = Object.entries(DATA.shared);
  box.append(el('p', { class: 'hint' }, 'Weights of one rank as vLLM allocates them; the key/value cache and activations come on top.',
    shared.length ? ` The draft shares with the target what the file does not carry; not allocated: ${shared.map(([module, bytes]) => `${show(module)} ${size(bytes)}`).join(', ')}.` : ''));
}

// ---- details ----
function detail(title, note, content, open = false) {
  return el('details', { class: 'card', open }, el('summary', {}, el('b', {}, title), note ? el('span', { class: 'muted' }, note) : null), content);
}
function rowsTable(heads, rows) {
  return el('div', { class: 'wide-scroll', tabindex: '0', role: 'region', 'aria-label': heads.join(', ') }, el('table', {}, el('thead', {}, el('tr', {}, ...heads.map((head) => el('th', { scope: 'col' }, head)))),
    el('tbody', {}, ...rows.map((cells) => el('tr', {}, ...cells.map((cell) => el('td', {}, cell)))))));
}
const pairs = (entries) => el('dl', { class: 'pairs' }, ...entries.flatMap(([key, value]) => [el('dt', {}, name(key)), el('dd', {}, el('bdi', {}, show(typeof value === 'string' ? value : JSON.stringify(value))))]));

function startDetails() {
  const list = $('detail-list'), { storage, config, templates, stock } = DATA, header = Object.entries(DATA.header), assumed = Object.entries(config.assumed);
  if (DATA.rows) list.append(detail('Rows to start from', 'docs/adding-an-architecture.md', copyBox(DATA.rows, 'Inferred rows')));
  if (DATA.left.length) {
    list.append(detail('Skipped and phantom', `${count(DATA.summary.skipped)} skipped, ${count(DATA.summary.phantom)} phantom`,
      rowsTable(['Class', 'Count', 'Names', 'Reason'], DATA.left.map((x) => [x.kind, count(x.count), el('span', {}, ...x.names.slice(0, 12).flatMap((one, i) => [i ? ', ' : '', name(one)]), x.names.length > 12 ? ` and ${count(x.names.length - 12)} more` : ''), `${show(x.reason)}${x.bytes ? ` (${size(x.bytes)})` : ''}`]))));
  }
  if (storage) {
    const packed = storage.groups.filter((group) => group.storage === 'packed').reduce((sum, group) => sum + group.count, 0);
    list.append(detail('Storage', packed ? `${many(packed, 'layer')} packed` : `dense: ${show(storage.note || 'no layer can hold its GGUF blocks')}`,
      storage.groups.length ? rowsTable(['Layers', 'Count', 'Types', 'Storage', 'Per rank', 'Dense'], storage.groups.map((g) => [name(`${g.role === 'draft' ? 'draft: ' : ''}${g.layer}`), count(g.count), show(g.types), g.reason ? `${g.storage}: ${show(g.reason)}` : g.storage, size(g.bytes), size(g.dense_bytes)])) : el('p', { class: 'empty' }, `All weights are dense: ${show(storage.note)}.`)));
  }
  list.append(detail('Config', config.source === 'header' ? 'from the header' : show(config.source), assumed.length ? el('div', {}, el('p', { class: 'hint' }, 'Assumed: the family\u2019s values, which no header carries.'), pairs(assumed)) : el('p', { class: 'empty' }, 'Nothing is assumed.')));
  if (header.length) list.append(detail('Header', many(header.length, 'key'), pairs(header)));
  const refused = templates.flatMap((t) => t.findings).filter((finding) => finding.refused).length;
  list.append(detail('Chat templates', templates.length ? `${many(templates.length, 'template')}${refused ? `, ${many(refused, 'finding')} that turn chat off` : ''}` : 'none in the header',
    templates.length ? el('div', {}, ...templates.map((t) => el('div', { class: 'template' }, el('h3', {}, name(t.key)), el('p', { class: 'muted' }, `${count(t.bytes)} bytes, sha256 `, name(t.sha256)),
      t.findings.length ? rowsTable(['Finding', 'Line', 'Text', 'Chat'], t.findings.map((f) => [f.kind, f.line, name(f.text), f.refused ? el('span', { class: 'pill bad' }, '\u2717 off') : 'as it is'])) : el('p', {}, 'Nothing found.')))) : el('p', { class: 'empty' }, 'Chat needs a template; vLLM takes one with --chat-template.')));
  if (stock) list.append(detail('What gguf-py\u2019s own map would do', `${count(stock.entries)} entries, ${count(stock.unmapped.length)} unmapped, ${count(stock.phantom.length)} phantom`, el('div', {}, el('h3', {}, 'Unmapped'), nameList(stock.unmapped), el('h3', {}, 'Phantom'), nameList(stock.phantom))));
  let opened = [];
  addEventListener('beforeprint', () => { opened = [...document.querySelectorAll('details:not([open])')]; for (const one of opened) one.open = true; });
  addEventListener('afterprint', () => { for (const one of opened) one.open = false; });
}
