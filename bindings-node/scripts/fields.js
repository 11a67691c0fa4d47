'use strict'

// The fields of package.json by which npm chooses the package of a platform.
exports.fields = (name) => {
  const [os, cpu, suffix] = name.split('-')
  const libc = { gnu: 'glibc', musl: 'musl' }[suffix]
  return { os: [os], cpu: [cpu], ...(libc !== undefined && { libc: [libc] }) }
}
