'use strict'
// Packs what is published: the package of JavaScript, or that of one platform with its binary. Prints the name of the file.
//
// node scripts/pack.js FOLDER [NOTICES]                           the package `redlatch`, into FOLDER; NOTICES has the licences of
//                                                                 what is linked into the module for WebAssembly
// node scripts/pack.js FOLDER PLATFORM BINARY NOTICES [PROGRAM]   the package `@redlatch/PLATFORM`; NOTICES has the licences of
//                                                                 what is linked into BINARY and PROGRAM, the command line

const { execFileSync } = require('node:child_process')
const { chmodSync, cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } = require('node:fs')
const { tmpdir } = require('node:os')
const { join, resolve } = require('node:path')
const { PLATFORMS } = require('../lib/platform.js')
const { fields } = require('./fields.js')

const root = join(__dirname, '..')
const source = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))

// Both packages have the same version and links: those of Cargo.toml.
function common() {
  const told = execFileSync('cargo', ['metadata', '--no-deps', '--format-version=1'], { cwd: root, maxBuffer: 2 ** 28 })
  const { version, repository, homepage, authors } = JSON.parse(told).packages.find(({ name }) => name === 'redlatch-node')
  if (version !== source.version) throw new Error(`package.json has version ${source.version}, Cargo.toml ${version}`)
  const { license, engines, publishConfig } = source
  const links = repository && {
    homepage,
    repository: { type: 'git', url: `git+${repository}.git`, directory: 'bindings-node' },
    bugs: { url: `${repository}/issues` },
  }
  return { version, license, engines, publishConfig, ...links, ...(authors[0] && { author: authors[0] }) }
}

function javascript(place, notices) {
  const { private: _, scripts, devDependencies, ...kept } = source
  // A checkout may be without the module. scripts/dist packs none without where it can be compiled.
  const there = (file) => !file.includes('*') && (file !== 'redlatch.wasm' || existsSync(join(root, file)))
  for (const file of kept.files.filter(there)) cpSync(join(root, file), join(place, file), { recursive: true })
  cpSync(join(root, 'README.md'), join(place, 'README.md'))
  if (notices !== undefined) {
    cpSync(notices, join(place, 'THIRD-PARTY-NOTICES.txt'))
    kept.files = [...kept.files, 'THIRD-PARTY-NOTICES.txt']
  }
  const { version, ...rest } = common()
  const optionalDependencies = Object.fromEntries(PLATFORMS.map((name) => [`@redlatch/${name}`, version]))
  return { ...kept, ...rest, optionalDependencies }
}

function platform(place, name, binary, notices, program) {
  if (!PLATFORMS.includes(name)) throw new Error(`no platform '${name}'; there are ${PLATFORMS.join(', ')}`)
  const main = `redlatch.${name}.node`
  cpSync(binary, join(place, main))
  if (program) {
    cpSync(program, join(place, 'redlatch'))
    chmodSync(join(place, 'redlatch'), 0o755)
  }
  cpSync(notices, join(place, 'THIRD-PARTY-NOTICES.txt'))
  writeFileSync(join(place, 'README.md'), `The binary of \`redlatch\` for ${name}. Install \`redlatch\`, which chooses it.\n`)
  return {
    name: `@redlatch/${name}`,
    description: `The binary of redlatch for ${name}`,
    ...common(),
    ...fields(name),
    type: 'commonjs',
    main,
    files: [main, ...(program ? ['redlatch'] : []), 'LICENSE-*', 'THIRD-PARTY-NOTICES.txt'],
    preferUnplugged: true, // Yarn: no system loads a library out of an archive
  }
}

const [folder, ...which] = process.argv.slice(2)
if (folder === undefined || ![0, 1, 3, 4].includes(which.length)) {
  throw new Error('usage: pack.js FOLDER [NOTICES | PLATFORM BINARY NOTICES [PROGRAM]]')
}
const place = mkdtempSync(join(tmpdir(), 'redlatch-pack-'))
try {
  const manifest = which.length <= 1 ? javascript(place, ...which) : platform(place, ...which)
  writeFileSync(join(place, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`)
  for (const licence of ['LICENSE-MIT', 'LICENSE-APACHE']) cpSync(join(root, '..', licence), join(place, licence))
  const pack = ['pack', '--silent', '--pack-destination', resolve(folder)]
  process.stdout.write(execFileSync('npm', pack, { cwd: place, shell: process.platform === 'win32' }))
} finally {
  rmSync(place, { recursive: true, force: true })
}
