// The browser of the tests: scripts/setup-browser has to have got it.
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { brotliDecompressSync } from 'node:zlib'
import chromium from '@sparticuz/chromium'
import { chromium as playwright } from 'playwright-core'

// A browser, and the function that ends it.
export async function launch() {
  const place = mkdtempSync(join(tmpdir(), 'redlatch-browser-'))
  const remove = () => rmSync(place, { recursive: true, force: true })
  try {
    const browser = await start(place)
    return { browser, end: () => browser.close().finally(remove) }
  } catch (error) {
    remove()
    throw error
  }
}

async function start(place) {
  // The package unpacks its browser and fonts into the folder for temporary files. Its libraries, which a machine may lack, it
  // unpacks only where it believes to be at home. Its own arguments are for one process, which ends with the first closed page.
  const executablePath = await within(place, () => chromium.executablePath())
  const libraries = readFileSync(new URL('node_modules/@sparticuz/chromium/bin/al2023.tar.br', import.meta.url))
  execFileSync('tar', ['-x', '-C', place], { input: brotliDecompressSync(libraries) })
  // The package's own list of fonts names /tmp/fonts. Without a font a page has no text, and the browser ends at the first symbol.
  const fonts = join(place, 'fonts')
  writeFileSync(join(fonts, 'fonts.conf'), `<fontconfig><dir>${fonts}</dir><cachedir>${fonts}/cache</cachedir></fontconfig>`)
  const env = { ...process.env, TMPDIR: place, LD_LIBRARY_PATH: join(place, 'lib'), FONTCONFIG_PATH: fonts }
  return playwright.launch({ executablePath, env, args: ['--no-sandbox', '--disable-gpu', '--headless=shell'] })
}

// Calls it while this is the folder for temporary files.
async function within(place, call) {
  const before = process.env.TMPDIR
  process.env.TMPDIR = place
  try {
    return await call()
  } finally {
    if (before === undefined) delete process.env.TMPDIR
    else process.env.TMPDIR = before
  }
}
