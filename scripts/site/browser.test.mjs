// The documentation site in a real browser, on a desk and on a phone. `scripts/docs-site` has to have built it.
// REDLATCH_SHOTS=FOLDER leaves pictures of the pages there.
import assert from 'node:assert/strict'
import { createReadStream, existsSync, readdirSync, statSync } from 'node:fs'
import { createServer } from 'node:http'
import { extname, join, relative } from 'node:path'
import { after, before, test } from 'node:test'
import { launch } from './browser.mjs'

const root = join(process.env.CARGO_TARGET_DIR, 'site', 'html')
const shots = process.env.REDLATCH_SHOTS
const TYPES = { '.html': 'text/html', '.css': 'text/css', '.js': 'text/javascript', '.json': 'application/json', '.svg': 'image/svg+xml' }
const SIZES = { desk: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } }
let server, browser, end, home

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
  ;({ browser, end } = await launch())
})

after(async () => {
  await end?.()
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
  // For each group of tabs the labels that are chosen and the programs that can be seen.
  const shown = () => page.locator('.tabbed-set').evaluateAll((groups) => groups.map((group) => {
    const labels = [...group.querySelectorAll(':scope > .tabbed-labels label')].filter(({ htmlFor }) => document.getElementById(htmlFor).checked)
    const programs = [...group.querySelectorAll('[class*="language-"]')].filter((program) => program.offsetParent)
    return [labels.map((label) => label.textContent).join(), programs.map(({ className }) => className.match(/language-(\w+)/)[1]).join()]
  }))
  await open('/read-write-lock/')
  const before = await shown()
  assert.ok(before.length > 0)
  for (const group of before) assert.deepEqual(group, ['Rust', 'rust'])
  await page.locator('.tabbed-labels label', { hasText: 'Node.js' }).first().click()
  for (const group of await shown()) assert.deepEqual(group, ['Node.js', 'js'])
  for (const path of ['/re-entry/', '/fencing/', '/recipes/', '/semaphore/', '/start/']) {
    await open(path)
    const there = await shown()
    assert.ok(there.length > 0, path)
    for (const group of there) assert.deepEqual(group, ['Node.js', 'js'], path)
    if (shots) {
      await page.locator('.tabbed-set').first().evaluate((group) => group.scrollIntoView({ block: 'center' }))
      await page.screenshot({ path: join(shots, `tabs${path.replaceAll('/', '_')}.png`) })
    }
  }
  await close()
})

test('a search for a problem finds its recipe, and leads there', async () => {
  for (const size of Object.keys(SIZES)) {
    const { page, wrong, open, close } = await fresh(size)
    await open('/security/')
    await page.locator('.md-search__button:visible, label.md-header__button[for="__search"]:visible').click()
    await page.keyboard.type('leader election')
    const found = page.getByRole('option', { name: /Leader election/ })
    await found.waitFor()
    if (shots) await page.screenshot({ path: join(shots, `${size}_search.png`) })
    await found.click()
    await page.waitForURL(/recipes.*#leader-election$/)
    assert.ok(await page.locator('#leader-election').isVisible())
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
