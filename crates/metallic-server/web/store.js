// Conversations in the browser's own database, and what belongs to one: a tree of messages, of which one path is shown.

const NAME = 'metallic';
const STORE = 'conversations';

let database = null;
/** Without a database (private windows of some browsers) conversations last as long as the page. */
const memory = new Map();

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error('another window holds the database'));
  });

/** Opens the database; false where there is none. */
export async function open() {
  try {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE, { keyPath: 'id' });
    database = await settled(opening);
    database.onversionchange = () => database.close();
    return true;
  } catch {
    return false;
  }
}

async function transact(mode, work) {
  const transaction = database.transaction(STORE, mode);
  const working = settled(work(transaction.objectStore(STORE)));
  if (mode === 'readonly') return working;
  const done = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error);
  });
  // What is under way when a page ends is taken back, unless it was said that nothing more comes.
  transaction.commit();
  const [result] = await Promise.all([working, done]);
  return result;
}

export const all = async () => (database ? transact('readonly', (store) => store.getAll()) : [...memory.values()]);
export const load = async (id) => (database ? transact('readonly', (store) => store.get(id)) : memory.get(id));
export const remove = async (id) => (database ? transact('readwrite', (store) => store.delete(id)) : memory.delete(id));

/** Throws where there is no room left (`QuotaExceededError`). */
export async function save(conversation) {
  if (database) await transact('readwrite', (store) => store.put(conversation));
  else memory.set(conversation.id, conversation);
}

// crypto.randomUUID is for secure contexts alone, and a server in the house has no certificate.
const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(36).padStart(2, '0')).join('');

export const create = (system) => ({ id: newId(), title: '', system, created: Date.now(), updated: Date.now(), leaf: null, nodes: {} });

/** Adds a message below `parent` and shows it. */
export function add(conversation, parent, role, content) {
  const node = { id: newId(), parent, role, content, time: Date.now() };
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  return node;
}

/** The messages that are shown, the first one first. */
export function path(conversation, leaf = conversation.leaf) {
  const nodes = [];
  for (let node = conversation.nodes[leaf]; node; node = conversation.nodes[node.parent]) nodes.unshift(node);
  return nodes;
}

/** A message and the others that stand in its place. */
export const siblings = (conversation, node) => Object.values(conversation.nodes).filter((other) => other.parent === node.parent);

/** Shows the newest of what follows this message. */
export function show(conversation, node) {
  let leaf = node.id;
  while (newest(conversation, leaf)) leaf = newest(conversation, leaf).id;
  conversation.leaf = leaf;
}

const newest = (conversation, parent) => Object.values(conversation.nodes).findLast((node) => node.parent === parent);

/** The name in the list: what the user gave it, or how it begins. */
export function title(conversation) {
  if (conversation.title) return conversation.title;
  const first = Object.values(conversation.nodes).find((node) => node.role === 'user');
  const line = first?.content.trim().split('\n')[0] ?? '';
  return line ? ([...line].length > 60 ? `${[...line].slice(0, 60).join('')}…` : line) : 'New chat';
}
