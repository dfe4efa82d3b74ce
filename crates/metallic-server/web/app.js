// The page: which conversation is shown, what keys and buttons do, and the answers under way.

import * as api from './api.js';
import { Answer } from './answer.js';
import { $, h, iconButton } from './dom.js';
import * as settings from './settings.js';
import * as store from './store.js';
import { MessageView } from './view.js';

const POLL_MS = 2000;
const SAVE_MS = 1000;

let conversation = store.create('');
let views = new Map(); // of the messages that are shown, by id
const answers = new Map(); // under way, by the id of their conversation
const deleted = new Set(); // ids: an answer that ends later must not bring its conversation back
const channel = new BroadcastChannel('metallic');

/** Where there is no keyboard but the one that would cover half of the page, the field is not focused. */
const focusInput = () => matchMedia('(hover: hover)').matches && $('input').focus();

const act = {
  copy: (text) => copy(text),
  edit,
  running: (node) => answers.get(conversation.id)?.node === node,
  again: (node) => {
    answer(conversation, node.parent);
    focusInput();
  },
  show: (node) => {
    if (answers.has(conversation.id)) return;
    store.show(conversation, node);
    keep(conversation);
    draw();
    views.get(node.id).element.querySelector('.tools button:enabled').focus();
  },
};

// ---- Messages

function draw() {
  views = new Map();
  const shown = store.path(conversation);
  $('messages').replaceChildren(
    ...shown.map((node) => {
      const view = new MessageView(conversation, node, act);
      views.set(node.id, view);
      return view.element;
    }),
  );
  $('empty').hidden = shown.length > 0;
  $('system').value = conversation.system;
  document.title = shown.length ? `${store.title(conversation)} – Metallic` : 'Metallic';
  busy();
  follow(true);
}

function busy() {
  const running = answers.has(conversation.id);
  $('stop').hidden = !running;
  $('send').hidden = running;
  $('messages').classList.toggle('locked', running);
}

function edit(node) {
  if (answers.has(conversation.id)) return;
  const of = conversation;
  views.get(node.id)?.edit(
    (text) => {
      const changed = store.add(of, node.parent, 'user', text);
      draw();
      answer(of, changed.id);
      focusInput();
    },
    () => {
      draw();
      focusInput();
    },
  );
}

function send(text) {
  if (answers.has(conversation.id)) return;
  const node = store.add(conversation, conversation.leaf, 'user', text);
  answer(conversation, node.id);
}

/** Asks for an answer to the message `parent`, beside those it has. */
async function answer(of, parent) {
  if (answers.has(of.id)) return;
  const asked = store.path(of, parent).filter((node) => node.content);
  const node = store.add(of, parent, 'assistant', '');
  node.model = $('model').value;
  const messages = asked.map(({ role, content }) => ({ role, content }));
  if (of.system.trim()) messages.unshift({ role: 'system', content: of.system });
  const run = new Answer(of, node, { change: painter(of, node), wait: (left) => waiting(of, left) });
  answers.set(of.id, run);
  notice('');
  if (of === conversation) draw();
  say('Answering');
  keep(of);
  list();
  const saving = setInterval(() => keep(of), SAVE_MS);
  const error = await run.run({ model: node.model, messages, ...settings.sampling() });
  clearInterval(saving);
  answers.delete(of.id);
  of.updated = Date.now();
  await keep(of);
  list();
  poll();
  if (of === conversation) {
    const view = views.get(node.id);
    view?.update(true, act.again);
    busy();
    follow();
  }
  say(error ? node.error : run.stopped ? 'Stopped' : 'The answer is complete');
  if (error?.status === 401) askForKey();
}

/** Shows a growing answer at most once a frame, and less often the longer that takes. */
function painter(of, node) {
  let due = false;
  let cost = 0;
  return () => {
    if (due || of !== conversation) return;
    due = true;
    setTimeout(() => requestAnimationFrame(() => {
      due = false;
      // It may have ended, or another conversation be shown by now.
      if (of !== conversation || answers.get(of.id)?.node !== node) return;
      const begun = performance.now();
      views.get(node.id)?.update(false);
      follow();
      cost = performance.now() - begun;
    }), cost * 3);
  };
}

function waiting(of, left) {
  if (of === conversation) notice(left ? `The server is full. Asking again in ${left} s …` : '');
}

// ---- Scrolling: the end is followed until the user scrolls up

let stuck = true;
let top = 0;

function follow(force) {
  const scroll = $('scroll');
  stuck ||= Boolean(force);
  if (stuck) scroll.scrollTop = scroll.scrollHeight;
  $('to-end').hidden = stuck;
}

$('scroll').addEventListener('scroll', () => {
  const { scrollTop, scrollHeight, clientHeight } = $('scroll');
  const atEnd = scrollHeight - clientHeight - scrollTop < 8;
  if (atEnd) stuck = true;
  else if (scrollTop < top) stuck = false;
  top = scrollTop;
  $('to-end').hidden = stuck || scrollHeight - clientHeight - scrollTop < 100;
}, { passive: true });
$('to-end').addEventListener('click', () => follow(true));
new ResizeObserver(() => follow()).observe($('scroll'));

// ---- Conversations

async function keep(of) {
  if (!of.leaf || deleted.has(of.id)) return;
  try {
    await store.save(of);
    channel.postMessage(of.id);
  } catch (error) {
    const full = error?.name === 'QuotaExceededError';
    notice(full ? 'The browser has no room left for conversations. Export and delete some.' : `The conversation could not be kept: ${error?.message}`);
  }
}

async function list() {
  if (document.querySelector('#list input')) return; // a name is being written
  const items = (await store.all()).sort((a, b) => b.created - a.created);
  $('list').replaceChildren(
    ...items.map((item) => {
      const name = store.title(item);
      const open = h('button', { type: 'button', class: 'open', title: name, onclick: () => openConversation(item.id) }, name);
      const entry = h('li', { class: answers.has(item.id) ? 'running' : '', 'aria-current': item.id === conversation.id ? 'true' : null }, open,
        h('span', { class: 'tools' },
          iconButton('edit', 'Rename', () => rename(item.id, entry, name)),
          iconButton('save', 'Export as JSON', () => download([item], name)),
          iconButton('bin', 'Delete', () => remove(item.id))));
      return entry;
    }),
  );
  $('export-all').hidden = items.length === 0;
}

/** What is in work is not read again from the database: that is behind. */
const current = async (id) => answers.get(id)?.conversation ?? (conversation.id === id ? conversation : await store.load(id));

async function openConversation(id) {
  const found = await current(id);
  if (!found) return;
  conversation = found;
  settings.set('open', id);
  notice('');
  draw();
  side(false);
  list();
  focusInput();
}

function newConversation() {
  conversation = store.create(conversation.system);
  settings.set('open', null);
  notice('');
  draw();
  side(false);
  list();
  $('input').focus();
}

function rename(id, entry, name) {
  let left = false;
  const field = h('input', { value: name, 'aria-label': 'Name of the conversation', maxLength: 200 });
  const done = async (keepIt) => {
    if (left) return;
    left = true;
    field.remove();
    const found = keepIt && field.value.trim() && (await current(id));
    if (found) {
      found.title = field.value.trim();
      await keep(found);
    }
    await list();
  };
  field.addEventListener('blur', () => done(true));
  field.addEventListener('keydown', (event) => {
    if (event.isComposing) return;
    if (event.key === 'Enter') done(true);
    if (event.key === 'Escape') (event.stopPropagation(), done(false));
  });
  entry.replaceChildren(field);
  field.select();
}

async function remove(id) {
  const found = await current(id);
  deleted.add(id);
  answers.get(id)?.stop();
  await store.remove(id);
  channel.postMessage(id);
  if (conversation.id === id) newConversation();
  else list();
  toast(`“${store.title(found)}” is deleted.`, 'Undo', async () => {
    deleted.delete(id);
    await keep(found);
    list();
  });
}

function download(conversations, name) {
  const blob = new Blob([JSON.stringify({ format: 'metallic-conversations-1', conversations }, null, 2)], { type: 'application/json' });
  const url = URL.createObjectURL(blob);
  h('a', { href: url, download: `${name.replace(/[^\p{L}\p{N} _-]/gu, '').trim().slice(0, 60) || 'conversation'}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Another window has changed something.
channel.onmessage = async ({ data: id }) => {
  list();
  if (id !== conversation.id || answers.has(id) || document.querySelector('.editing')) return;
  const found = await store.load(id);
  if (found) {
    conversation = found;
    draw();
  }
};

// ---- Messages to the user

/** For those who hear the page. */
function say(text) {
  $('live').textContent = text;
}

function notice(text) {
  $('notice').textContent = text;
}

let toastTimer = 0;
function toast(text, label, onclick) {
  clearTimeout(toastTimer);
  const hide = () => $('toast').replaceChildren();
  const button = label && h('button', { type: 'button', onclick: () => (hide(), onclick()) }, label);
  $('toast').replaceChildren(h('span', {}, text), button ?? '');
  toastTimer = setTimeout(hide, label ? 8000 : 2000);
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No clipboard without a certificate: the old way still works there.
    const field = h('textarea', { value: text, class: 'unseen' });
    document.body.append(field);
    field.select();
    document.execCommand('copy');
    field.remove();
  }
  if (!button) return toast('Copied');
  button.textContent = 'Copied';
  setTimeout(() => (button.textContent = 'Copy'), 1500);
}

$('messages').addEventListener('click', ({ target }) => {
  if (target.matches?.('.code .copy')) copy(target.closest('.code').querySelector('code').textContent, target);
});

function askForKey() {
  if (!$('settings').open) $('settings').showModal();
  $('key').focus();
}

// ---- The server

async function loadModels() {
  try {
    const names = await api.models();
    const chosen = $('model').value;
    const wanted = [chosen, settings.get('model')].find((name) => names.includes(name)) ?? names[0];
    $('model').replaceChildren(...names.map((name) => h('option', { value: name, selected: name === wanted }, name)));
    if (!answers.size) notice('');
    return true;
  } catch (error) {
    notice(error.status === 401 ? 'The server asks for an API key: it goes into the settings.' : error.message);
    if (error.status === 401) askForKey();
    return false;
  }
}

let reached = true;
async function poll() {
  if (document.hidden) return;
  try {
    const { running, waiting: queued } = await api.load();
    $('queue').textContent = `${running} running${queued ? ` · ${queued} waiting` : ''}`;
    $('queue').className = queued ? 'full' : running ? 'on' : '';
    if (!reached) loadModels();
    reached = true;
  } catch (error) {
    reached = error.status !== 0;
    $('queue').textContent = reached ? '' : 'not reachable';
    $('queue').className = reached ? '' : 'off';
  }
}

// ---- Keys and buttons

const input = $('input');

function fit() {
  if (CSS.supports('field-sizing', 'content')) return;
  input.style.height = 'auto';
  input.style.height = `${Math.min(input.scrollHeight + 2, 240)}px`;
}

$('composer').addEventListener('submit', async (event) => {
  event.preventDefault();
  if (!$('model').value && !(await loadModels())) return;
  const text = input.value.trim();
  if (!text || answers.has(conversation.id)) return;
  input.value = '';
  fit();
  send(text);
  settings.set('open', conversation.id);
  input.focus();
});
input.addEventListener('input', fit);
input.addEventListener('keydown', (event) => {
  // Enter that ends a composition (Japanese, Chinese, …) chooses a word; it sends nothing.
  if (event.isComposing || event.keyCode === 229) return;
  if (event.key === 'Enter' && !event.shiftKey) {
    event.preventDefault();
    $('composer').requestSubmit();
  }
  if (event.key === 'ArrowUp' && input.value === '') {
    const last = store.path(conversation).findLast((node) => node.role === 'user');
    if (!last || answers.has(conversation.id)) return;
    event.preventDefault();
    edit(last);
  }
});
const stop = () => answers.get(conversation.id)?.stop();
$('stop').addEventListener('click', () => (stop(), input.focus()));
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !$('settings').open && !event.isComposing) {
    if ($('side').classList.contains('shown')) side(false);
    else stop();
  }
  if ((event.ctrlKey || event.metaKey) && !event.altKey && !$('settings').open && event.key.toLowerCase() === 'k') {
    event.preventDefault();
    newConversation();
  }
});

function side(shown) {
  $('side').classList.toggle('shown', shown);
  $('open-side').setAttribute('aria-expanded', String(shown));
  if (shown) $('new').focus();
}
$('open-side').addEventListener('click', () => side(true));
$('close-side').addEventListener('click', () => (side(false), $('open-side').focus()));
$('shade').addEventListener('click', () => side(false));
$('new').addEventListener('click', newConversation);
$('export-all').addEventListener('click', async () => download(await store.all(), 'metallic conversations'));
$('open-settings').addEventListener('click', () => $('settings').showModal());
$('settings').addEventListener('close', () => input.focus());
$('system').addEventListener('input', () => {
  conversation.system = $('system').value;
});
$('settings').addEventListener('close', () => keep(conversation));
$('model').addEventListener('change', () => settings.set('model', $('model').value));
document.addEventListener('visibilitychange', poll);
addEventListener('pagehide', () => answers.forEach((run) => keep(run.conversation)));

// ---- Begin

settings.start(loadModels);
if (!(await store.open())) notice('This browser keeps no data for this page: conversations end with it.');
const last = settings.get('open');
const kept = last && (await store.load(last));
if (kept) conversation = kept;
draw();
list();
await loadModels();
poll();
setInterval(poll, POLL_MS);
document.documentElement.dataset.ready = '';
