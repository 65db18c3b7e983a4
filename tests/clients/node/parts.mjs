// The parts of a client's script: each is called, and their errors are printed as one line of JSON (see ../python/parts.py).

export const { DEMO, TOOLS, MODEL } = process.env;
export const KEY = "none";
export const STORY = "Tom has 5 apples, gets 3, loses 2.";
export const LONG = "Tom has 5 apples. ".repeat(600);

export function assert(condition, message = "is not so") {
  if (!condition) throw new Error(message);
}

// The error of a call, which must fail.
export async function fails(call) {
  try {
    await call();
  } catch (error) {
    return error;
  }
  throw new Error("no error");
}

export async function run(parts) {
  const errors = {};
  for (const [name, call] of Object.entries(parts)) {
    try {
      await call();
      errors[name] = null;
    } catch (error) {
      console.error(error);
      errors[name] = String(error).slice(0, 300);
    }
  }
  console.log(JSON.stringify({ errors }));
  process.exit(0);
}
