// Search that also works where the pages are read from disk: a browser starts no worker and fetches no JSON there, but reads a script.
(function () {
  function load(name, then) {
    var script = document.createElement("script");
    script.src = base_url.replace(/\/?$/, "/") + "search/" + name;
    script.onload = then;
    document.head.appendChild(script);
  }

  function show(found) {
    var place = document.getElementById("mkdocs-search-results");
    place.textContent = found.length ? "" : place.getAttribute("data-no-results-text") || "No results found";
    found.slice(0, 40).forEach(function (page) {
      var article = document.createElement("article"), head = document.createElement("h3");
      var link = document.createElement("a"), words = document.createElement("p");
      link.href = base_url.replace(/\/?$/, "/") + page.location;
      link.textContent = page.title;
      words.textContent = page.text.slice(0, 200);
      head.appendChild(link);
      article.append(head, words);
      place.appendChild(article);
    });
  }

  function begin() {
    var pages = {}, field = document.getElementById("mkdocs-search-query");
    if (!field) return;
    var index = lunr(function () {
      this.ref("location");
      this.field("title", {boost: 10});
      this.field("text");
      window.searchIndex.docs.forEach(function (page) {
        pages[page.location] = page;
        this.add(page);
      }, this);
    });
    function search() {
      var words = lunr.tokenizer(field.value).map(String);
      show(words.length ? index.query(function (query) {
        words.forEach(function (word) {
          query.term(word, {boost: 10, usePipeline: true});
          query.term(word, {wildcard: lunr.Query.wildcard.TRAILING, usePipeline: false});
        });
      }).map(function (one) { return pages[one.ref]; }) : []);
    }
    field.addEventListener("keyup", search);
    field.value = new URLSearchParams(location.search).get("q") || "";
    if (field.value) search();
  }

  load("lunr.js", function () { load("search_index.js", begin); });
})();
