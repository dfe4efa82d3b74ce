// What the user has chosen: kept in this browser, the key only until it is closed unless asked otherwise.

import { setKey } from './api.js';
import { $ } from './dom.js';

const read = (store, name) => {
  try {
    return store().getItem(`metallic.${name}`);
  } catch {
    return null;
  }
};
const write = (store, name, value) => {
  try {
    if (value) store().setItem(`metallic.${name}`, value);
    else store().removeItem(`metallic.${name}`);
  } catch {
    // Without storage it is good for this visit.
  }
};
const local = () => localStorage;
const session = () => sessionStorage;

export const get = (name) => read(local, name);
export const set = (name, value) => write(local, name, value);

const inputs = () => [...$('sampling').querySelectorAll('input')];

/** The fields of a request that are not left to the server. */
export function sampling() {
  const fields = {};
  for (const input of inputs()) if (input.value !== '' && input.validity.valid) fields[input.name] = input.valueAsNumber;
  return fields;
}

/** Fills the form in and keeps what is changed; `onkey` is told of another key. */
export function start(onkey) {
  let kept = {};
  try {
    kept = JSON.parse(get('sampling') ?? '{}') ?? {};
  } catch {
    // Spoilt: the server's own values.
  }
  for (const input of inputs()) input.value = kept[input.name] ?? '';
  $('sampling').addEventListener('change', () => set('sampling', JSON.stringify(sampling())));
  $('reset').addEventListener('click', () => {
    for (const input of inputs()) input.value = '';
    set('sampling', null);
  });

  const lasting = read(local, 'key');
  $('key').value = lasting ?? read(session, 'key') ?? '';
  $('keep-key').checked = Boolean(lasting);
  const key = () => {
    const value = $('key').value.trim();
    write(session, 'key', value);
    write(local, 'key', $('keep-key').checked ? value : null);
    setKey(value);
  };
  $('keep-key').addEventListener('change', key);
  $('key').addEventListener('change', () => {
    key();
    onkey();
  });
  setKey($('key').value);

  $('theme').addEventListener('click', () => {
    const root = document.documentElement;
    const dark = (root.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
    root.dataset.theme = dark ? 'light' : 'dark';
    set('theme', root.dataset.theme);
  });
}
