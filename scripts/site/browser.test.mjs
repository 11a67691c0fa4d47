// The documentation site in a real browser, on a desk and on a phone. `scripts/docs-site` has to have built it.
// REDLATCH_SHOTS=FOLDER leaves pictures of the pages there.
import assert from 'node:assert/strict'
import { createReadStream, existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { extname, join, relative } from 'node:path'
import { after, before, test } from 'node:test'
import chromium from '@sparticuz/chromium'
import { chromium as playwright } from 'playwright-core'

const root = join(process.env.CARGO_TARGET_DIR, 'site', 'html')
const shots = process.env.REDLATCH_SHOTS
const TYPES = { '.html': 'text/html', '.css': 'text/css', '.js': 'text/javascript', '.json': 'application/json', '.svg': 'image/svg+xml' }
const SIZES = { desk: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } }
let server, browser, place, home

before(async () => {
  assert.ok(existsSync(join(root, 'index.html')), `there is no site in ${root}: scripts/docs-site builds it`)
  server = createServer((request, response) => {
    let file = join(root, decodeURIComponent(new URL(request.url, 'http://site').pathname))
    if (existsSync(file) && statSync(file).isDirectory()) file = join(file, 'index.html')
    if (!existsSync(file)) return response.writeHead(404).end()
    response.writeHead(200, { 'content-type': TYPES[extname(file)] ?? 'application/octet-stream' })
    createReadStream(file).pipe(response)
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  home = `http://127.0.0.1:${server.address().port}`
  // The package unpacks its browser into the folder for temporary files. Its own arguments are for one process, which ends with
  // the first page that is closed.
  place = process.env.TMPDIR = mkdtempSync(join(tmpdir(), 'redlatch-browser-'))
  const args = ['--no-sandbox', '--disable-gpu', '--headless=shell']
  browser = await playwright.launch({ executablePath: await chromium.executablePath(), args })
})

after(async () => {
  await browser?.close()
  if (place) rmSync(place, { recursive: true, force: true })
  server?.close()
  server?.closeAllConnections()
})

// All pages of the generator; those of rustdoc and TypeDoc are theirs.
function pages(folder = root) {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name)
    if (entry.isDirectory()) return ['api/rust', 'api/node'].includes(relative(root, path)) ? [] : pages(path)
    return entry.name === 'index.html' ? [`/${relative(root, folder)}`] : []
  })
}

// A page of a browser that has not been here before. It must load nothing from elsewhere, and no script may fail.
async function fresh(size, options = {}) {
  const context = await browser.newContext({ viewport: SIZES[size], ...options })
  const page = await context.newPage()
  const wrong = []
  page.on('pageerror', (error) => wrong.push(`${page.url()}: ${error}`))
  page.on('request', (request) => request.url().startsWith(home) || /^(data|blob):/.test(request.url()) || wrong.push(`asks for ${request.url()}`))
  page.on('response', (response) => response.status() >= 400 && wrong.push(`${response.status()} ${response.url()}`))
  return { page, wrong, open: (path) => page.goto(home + path, { waitUntil: 'load' }), close: () => context.close() }
}

for (const size of Object.keys(SIZES)) {
  test(`no page is wider than a ${size}`, async () => {
    const { page, wrong, open, close } = await fresh(size)
    const wide = []
    for (const path of pages()) {
      await open(path)
      const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth])
      if (content > window) wide.push(`${path}: ${content} of ${window}`)
      if (shots) await page.screenshot({ path: join(shots, `${size}${path.replaceAll('/', '_')}.png`) })
    }
    assert.deepEqual([wide, wrong], [[], []])
    await close()
  })
}

test('a language that is chosen stays chosen on other pages', async () => {
  const { page, open, close } = await fresh('phone')
  const shown = () => page.locator('.tabbed-set').first().locator('.tabbed-labels label').evaluateAll((labels) => {
    const chosen = (label) => document.getElementById(label.htmlFor).checked
    return labels.filter(chosen).map((label) => label.textContent)
  })
  await open('/which-lock/')
  assert.deepEqual(await shown(), ['Rust'])
  await page.locator('.tabbed-labels label', { hasText: 'Node.js' }).first().click()
  assert.deepEqual(await shown(), ['Node.js'])
  assert.ok(await page.locator('.tabbed-block code.language-js, .tabbed-block .language-js').first().isVisible())
  await open('/sentinel/')
  assert.deepEqual(await shown(), ['Node.js'])
  await close()
})

test('a search for watchdog finds pages that tell of it', async () => {
  for (const size of Object.keys(SIZES)) {
    const { page, wrong, open, close } = await fresh(size)
    await open('/')
    await page.locator('.md-search__button').first().click()
    await page.keyboard.type('watchdog')
    const found = page.locator('a[href*="which-lock"], a[href*="options"]').filter({ hasText: /watchdog/i }).filter({ visible: true })
    await found.first().waitFor()
    if (shots) await page.screenshot({ path: join(shots, `${size}_search.png`) })
    await found.first().click()
    await page.waitForURL(/which-lock|options/)
    assert.match(readFileSync(join(root, new URL(page.url()).pathname, 'index.html'), 'utf8'), /watchdog/i)
    assert.deepEqual(wrong, [])
    await close()
  }
})

test('light and dark follow the system, and a button', async () => {
  for (const colorScheme of ['light', 'dark']) {
    const { page, open, close } = await fresh('desk', { colorScheme })
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).every((part) => part < 128))
    await open('/')
    assert.equal(await ground(), colorScheme === 'dark')
    await page.locator('label[title^="Switch to"]:visible').click()
    assert.equal(await ground(), colorScheme !== 'dark')
    await open('/options/')
    assert.equal(await ground(), colorScheme !== 'dark')
    if (shots) await page.screenshot({ path: join(shots, `from_${colorScheme}.png`) })
    await close()
  }
})
