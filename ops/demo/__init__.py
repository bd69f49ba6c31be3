"""The recovery reproduction: four acts on a stack of their own, each claim measured.

1. before: commit, then `send()`: Redis dies in between, and the job stays QUEUED for ever
2. after: jobs accepted while Redis is dead are rendered once each when it comes back empty
3. a commit that fails leaves nothing, and its key can be used again
4. FLUSHALL while every worker thread is busy costs no job and no second render
"""
