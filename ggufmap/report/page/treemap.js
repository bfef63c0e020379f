// The file by bytes: block -> part -> tensor (or part -> block -> tensor), squarified.
const map = { order: 'block', colour: 'type', path: [], tiles: [] };
const TILES = 400;

const rowLabel = (no) => {
  const [stack, block] = DATA.blocks.rows[no];
  return stack === 'blk' ? `block ${block}` : `${stack} ${block}`;
};
function tree(order) {
  const root = { label: DATA.name || 'file', bytes: TOTAL, children: new Map() };
  const step = (node, key) => {
    if (!node.children.has(key)) node.children.set(key, { label: key, bytes: 0, children: new Map() });
    return node.children.get(key);
  };
  for (const t of TENSORS) {
    if (!t.bytes) continue;
    const keys = t.row < 0 ? [t.part] : order === 'block' ? [rowLabel(t.row), t.part] : [t.part, rowLabel(t.row)];
    let node = root;
    for (const key of keys) { node = step(node, key); node.bytes += t.bytes; }
    node.children.set(`${t.name}\n${t.no}`, { label: t.name, bytes: t.bytes, tensor: t });
  }
  return finish(root);
}
function finish(node) {
  if (node.tensor) return node;
  let children = [...node.children.values()].map(finish).sort((a, b) => b.bytes - a.bytes);
  if (children.length === 1 && children[0].tensor) return { ...node, tensor: children[0].tensor, children: undefined };
  if (children.length > TILES) {
    const rest = children.slice(TILES - 1);
    children = [...children.slice(0, TILES - 1), finish({ label: `${count(rest.length)} smaller`, bytes: rest.reduce((sum, x) => sum + x.bytes, 0), children: new Map(rest.map((x, i) => [i, x])) })];
  }
  return { ...node, children };
}

/** Squarified treemap (Bruls, Huizing, van Wijk 2000): [{node, x, y, w, h}] of children sorted by bytes. */
function squarify(nodes, x, y, w, h) {
  const placed = [], total = nodes.reduce((sum, node) => sum + node.bytes, 0), scale = total ? (w * h) / total : 0;
  let at = 0;
  while (at < nodes.length && w > 0 && h > 0) {
    const side = Math.min(w, h);
    let end = at, sum = 0, worst = Infinity;
    while (end < nodes.length) {
      const next = sum + nodes[end].bytes * scale, large = nodes[at].bytes * scale, small = nodes[end].bytes * scale;
      const ratio = Math.max((side * side * large) / (next * next), (next * next) / (side * side * small));
      if (ratio > worst) break;
      [worst, sum] = [ratio, next];
      end++;
    }
    const thick = sum / side;
    let along = 0;
    for (; at < end; at++) {
      const long = (nodes[at].bytes * scale) / thick;
      placed.push(w >= h ? { node: nodes[at], x, y: y + along, w: thick, h: long } : { node: nodes[at], x: x + along, y, w: long, h: thick });
      along += long;
    }
    if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
  }
  return placed;
}

function main_category(node) {
  if (node.tensor) return CATEGORY[map.colour](node.tensor);
  node.main ??= {};
  if (!(map.colour in node.main)) {
    const bytes = new Map();
    const walk = (x) => (x.tensor ? bytes.set(CATEGORY[map.colour](x.tensor), (bytes.get(CATEGORY[map.colour](x.tensor)) ?? 0) + x.bytes) : x.children.forEach(walk));
    walk(node);
    node.main[map.colour] = [...bytes].reduce((best, entry) => (entry[1] > best[1] ? entry : best), ['', -1])[0];
  }
  return node.main[map.colour];
}
const tileColour = (node) => scheme(map.colour).colours.get(main_category(node)) ?? OTHER;

function drawMap() {
  const host = $('map'), canvas = $('map-canvas'), style = getComputedStyle(document.documentElement);
  const width = host.clientWidth, height = Math.round(Math.max(300, Math.min(width * 0.48, 500))), ratio = devicePixelRatio || 1;
  host.style.height = `${height}px`;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext('2d');
  pen.scale(ratio, ratio);
  const line = style.getPropertyValue('--card').trim(), strip = style.getPropertyValue('--strip').trim();
  const node = map.path[map.path.length - 1], focused = document.activeElement?.closest?.('#map-tiles');
  map.tiles = squarify(node.children ?? [node], 0, 0, width, height);
  const fill = (x, y, w, h, colour, gap) => { pen.fillStyle = colour; pen.fillRect(x, y, Math.max(w - gap, 0.4), Math.max(h - gap, 0.4)); };
  pen.fillStyle = line;
  pen.fillRect(0, 0, width, height);
  const buttons = map.tiles.map((tile, no) => {
    const { node: child, x, y, w, h } = tile, whole = !child.children, label = w > 44 && h > 20, head = !whole && label && h > 40 ? 20 : 0;
    if (whole) fill(x, y, w, h, tileColour(child), 2);
    else {
      fill(x, y, w, h, strip, 2);
      for (const inner of squarify(child.children, x + 1, y + head + 1, w - 4, h - head - 4)) fill(inner.x, inner.y, inner.w, inner.h, tileColour(inner.node), inner.w > 5 && inner.h > 5 ? 1 : 0);
    }
    const button = el('button', {
      type: 'button', class: head ? 'tile head' : 'tile', tabindex: no ? -1 : 0, 'data-no': no,
      'aria-label': `${show(child.label)}, ${size(child.bytes)}, ${share(child.bytes, TOTAL)} of the file, ${whole ? '' : 'mostly '}${show(main_category(child))}`,
    }, label && (whole || head) ? el('span', {}, show(child.label)) : null, label && w > 90 && (whole ? h > 40 : head && w > 130) ? el('small', {}, size(child.bytes)) : null);
    button.style.cssText = `left:${x}px;top:${y}px;width:${Math.max(w - 2, 1)}px;height:${Math.max(h - 2, 1)}px`;
    if (whole) button.style.color = inkOn(tileColour(child));
    return button;
  });
  $('map-tiles').replaceChildren(...buttons);
  if (focused && buttons.length) buttons[0].focus();
  drawCrumbs();
}

function drawCrumbs() {
  const items = map.path.map((node, depth) => {
    const last = depth === map.path.length - 1, inside = [show(node.label), el('small', {}, size(node.bytes))];
    return last ? el('span', { 'aria-current': 'true' }, ...inside) : el('button', { type: 'button', class: 'link', click: () => goUp(depth) }, ...inside);
  });
  $('crumbs').replaceChildren(...items.flatMap((item, i) => (i ? [el('span', { class: 'sep', 'aria-hidden': 'true' }, '\u203a'), item] : [item])));
}
function goUp(depth) {
  map.path.length = Math.max(1, depth + 1);
  drawMap();
  $('map-tiles').firstChild?.focus();
}
function enterTile(no) {
  const node = map.tiles[no].node;
  if (node.tensor) return openTensor(node.tensor);
  map.path.push(node);
  drawMap();
  $('map-tiles').firstChild?.focus();
}
function nearestTile(no, key) {
  const from = map.tiles[no], mid = (t) => [t.x + t.w / 2, t.y + t.h / 2], [cx, cy] = mid(from);
  const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  let best = no, least = Infinity;
  map.tiles.forEach((tile, i) => {
    const [x, y] = mid(tile), ahead = (x - cx) * dx + (y - cy) * dy, aside = Math.abs((x - cx) * dy) + Math.abs((y - cy) * dx);
    if (i !== no && ahead > 0.5 && ahead + 2 * aside < least) [best, least] = [i, ahead + 2 * aside];
  });
  return best;
}

function startMap() {
  if (!TOTAL) {
    $('map').replaceWith(el('p', { class: 'empty' }, 'The file has no bytes to show.'));
    return;
  }
  const tiles = $('map-tiles'), tileOf = (target) => { const button = target.closest?.('.tile'); return button ? Number(button.dataset.no) : -1; };
  const again = () => { map.path = [tree(map.order)]; drawMap(); };
  const colours = () => {
    const { bytes, colours: found } = scheme(map.colour);
    legend($('map-legend'), [...bytes].map(([label, value]) => [found.get(label), show(label), `${size(value)}${DOT}${share(value, TOTAL)}`]));
  };
  $('map-order').addEventListener('change', (e) => { map.order = e.target.value; again(); });
  $('map-colour').addEventListener('change', (e) => { map.colour = e.target.value; colours(); drawMap(); });
  tiles.addEventListener('click', (e) => { const no = tileOf(e.target); if (no >= 0) enterTile(no); });
  tiles.addEventListener('keydown', (e) => {
    const no = tileOf(e.target);
    if (e.key === 'Escape' || e.key === 'Backspace') { if (map.path.length > 1) goUp(map.path.length - 2); }
    else if (e.key.startsWith('Arrow') && no >= 0) {
      const next = tiles.children[nearestTile(no, e.key)];
      tiles.children[no].tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    } else return;
    e.preventDefault();
  });
  tooltip(tiles, (target) => {
    const no = tileOf(target);
    if (no < 0) return null;
    const { node } = map.tiles[no], t = node.tensor;
    return [show(t ? t.name : node.label), `${size(node.bytes)}${DOT}${share(node.bytes, TOTAL)} of the file`, t ? `${t.type}${DOT}${t.shape.join(` ${TIMES} `)}${t.storage ? DOT + t.storage : ''}` : `mostly ${show(main_category(node))}${DOT}${many(node.children.length, 'tile')} inside`, t && t.first && `${ARROW} ${show(t.target || t.first)}`];
  });
  new ResizeObserver(() => drawMap()).observe($('map'));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawMap);
  colours();
  again();
}
