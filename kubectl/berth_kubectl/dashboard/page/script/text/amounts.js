// Amounts and times, in the short forms of kubectl.

const UNITS = [
  ["d", 86400],
  ["h", 3600],
  ["m", 60],
  ["s", 1],
];
const BYTES = ["Ki", "Mi", "Gi", "Ti", "Pi"];
/** In hundredths of a card. */
const IN_CARDS = new Set(["gpu", "gpu-core", "gpu-memory-ratio", "rdma", "fpga"]);
const IN_BYTES = new Set(["gpu-memory", "memory", "ephemeral-storage"]);
/** Resources that every pod requests. */
const PLAIN = new Set(["cpu", "memory", "ephemeral-storage", "pods"]);

const numbers = new Intl.NumberFormat("en");

/** Return a number with separators. */
export function count(number) {
  return numbers.format(number);
}

/** Return a count with its noun: `1 node`, `3 nodes`. */
export function counted(number, noun, plural = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : plural}`;
}

/** Return a duration as kubectl's column AGE shows it: `95s`, `12m`, `3h20m`, `5d`. */
export function age(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 120) return `${whole}s`;
  const at = UNITS.findIndex(([, size]) => whole >= size);
  const [unit, size] = UNITS[at];
  const [smaller, part] = UNITS[at + 1];
  const rest = Math.floor((whole % size) / part);
  return `${Math.floor(whole / size)}${unit}${rest && whole < 10 * size ? `${rest}${smaller}` : ""}`;
}

/** Return the name of a resource without its group: `gpu-core`. */
export function short(resource) {
  return resource.slice(resource.lastIndexOf("/") + 1);
}

/** Return bytes with a binary unit and up to three digits: `39.5Gi`. */
export function bytes(amount) {
  let value = amount;
  let unit = "";
  for (const next of BYTES) {
    if (Math.abs(value) < 1024) break;
    value /= 1024;
    unit = next;
  }
  return `${Number(value.toPrecision(3))}${unit}`;
}

/** Return one amount of a resource: cpu is in thousandths, memory in bytes, parts of cards in hundredths. */
export function amount(resource, value) {
  const name = short(resource);
  if (IN_CARDS.has(name) && !resource.startsWith("nvidia.com/")) return cards(value);
  if (name === "cpu") return value % 1000 ? `${value}m` : count(value / 1000);
  return IN_BYTES.has(name) ? bytes(value) : count(value);
}

/** Return hundredths of cards as cards: `1.5`. */
export function cards(hundredths) {
  return count(Math.round(hundredths) / 100);
}

/** Return the name of a type of cards. */
export function typeName(type) {
  return type === "gpu" ? "GPU" : type;
}

/** Return the name of a card of a node: `GPU 0`, `rdma 1`. */
export function cardName({ type, minor }) {
  return `${typeName(type)} ${minor}`;
}

/** Return what a pod requests of devices, in short: `gpu 1.5`, `rdma 1`; all that it requests if that is nothing. */
export function requests(amounts) {
  const devices = Object.entries(amounts).filter(([name]) => !PLAIN.has(short(name)));
  return devices.length ? listed(devices) : allRequests(amounts);
}

/** Return all that a pod requests: `cpu 8, memory 64Gi, gpu 1.5`. */
export function allRequests(amounts) {
  return listed(Object.entries(amounts));
}

function listed(requested) {
  return requested.map(([name, value]) => `${short(name)} ${amount(name, value)}`).join(", ");
}

/** Return a share, 0 to 1, in percent. */
export function percent(share) {
  return `${Math.round(share * 100)} %`;
}

/** Return seconds since an RFC 3339 time; null if it is empty or no time. */
export function secondsSince(text, now) {
  const time = Date.parse(text);
  return Number.isNaN(time) ? null : (now - time) / 1000;
}
